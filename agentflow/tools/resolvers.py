"""From the text of a model to arguments that fit a tool's schema, or a refusal that tells the model what to do.

Nothing is guessed: cut JSON stays cut, a string stays a string, no default is filled in.
"""

import difflib
import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

from jsonschema import ValidationError
from jsonschema.exceptions import best_match

from agentflow.errors import ToolArgumentsError
from agentflow.events import plain
from agentflow.messages import clean_text
from agentflow.tools.registry import Tool

_MAX_DEPTH = 64
_MAX_ERRORS = 5
_MAX_LINE = 300  # characters of one line of a refusal


def resolve(tool: Tool, raw_arguments: str | None) -> dict[str, Any]:
    """The arguments in `raw_arguments`, as plain JSON data that fits the tool's schema.

    Blank text, None and `null` mean no arguments. NaN, infinities, a key given twice and nesting over 64 levels
    are refused. Raises `ToolArgumentsError`, whose text is for the model: each field, what is wrong with it,
    what is allowed, and an example.
    """
    arguments = _parse(tool, raw_arguments)
    problems = _problems(tool, arguments)
    if problems:
        raise _refusal(tool, problems)
    return arguments


def _parse(tool: Tool, raw_arguments: str | None) -> dict[str, Any]:
    text = (raw_arguments or "").strip()
    if text in ("", "null"):
        return {}
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise _refusal(tool, [f"not valid JSON: {str(error) or 'nested too deeply'}"]) from error
    if not isinstance(value, dict):
        raise _refusal(tool, [f"expected a JSON object, got {_json(value)}"])
    if _too_deep(value):
        raise _refusal(tool, [f"nested deeper than {_MAX_DEPTH} levels"])
    return {clean_text(key): plain(item) for key, item in value.items()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Which of two values counts differs between readers, so what was approved may not be what is run.
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _problems(tool: Tool, arguments: dict[str, Any]) -> list[str]:
    try:
        errors = list(itertools.islice(tool.contract.validator.iter_errors(arguments), _MAX_ERRORS))
        return [line for error in errors for line in _explain(error)]
    except Exception as error:  # noqa: BLE001  whatever a validator runs into, the call is not run
        return [f"could not be checked ({type(error).__name__})"]


def _explain(error: ValidationError) -> Iterator[str]:
    deepest = best_match([error]) or error
    place = ".".join(map(str, deepest.absolute_path))
    prefix = f"{place}: " if place else ""
    instance: Any = deepest.instance
    rule: Any = deepest.validator_value
    schema: Any = deepest.schema
    if deepest.validator == "required":
        yield f"{prefix}missing: {', '.join(name for name in rule if name not in instance)}"
    elif deepest.validator == "additionalProperties" and rule is False:
        known = schema.get("properties", {})
        for name in instance:
            if name not in known:
                yield f"{prefix}{name!r} is not a field{_nearest(name, known)}; fields: {', '.join(known) or 'none'}"
    elif deepest.validator == "enum":
        allowed = ", ".join(map(_json, rule))
        yield f"{prefix}{_json(instance)} is not allowed; allowed: {allowed}"
    elif deepest.validator == "type":
        yield f"{prefix}{_json(instance)} is not of type {_json(rule)}"
    else:
        yield f"{prefix}{_json(instance)} does not fit {deepest.validator}: {_json(rule)}"


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {close[0]!r}" if close else ""


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _refusal(tool: Tool, problems: list[str]) -> ToolArgumentsError:
    lines = [f"The arguments of {tool.name} are wrong and the call was not run."]
    for problem in problems[:_MAX_ERRORS]:
        line = clean_text(problem)
        lines.append(f"- {line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + '...'}")
    example = example_arguments(tool)
    if example is not None:
        lines.append(f"Example: {json.dumps(example, ensure_ascii=False)}")
    return ToolArgumentsError("\n".join(lines))


def example_arguments(tool: Tool) -> dict[str, Any] | None:
    """Arguments that the tool accepts: its own first example, else made from the schema, else None."""
    if tool.examples:
        return tool.examples[0]
    try:
        made = _sample(tool.parameters, tool.parameters, depth=0)
        fits = tool.contract.validator.is_valid(made)
    except Exception:  # noqa: BLE001  a schema may be stranger than `_sample` knows; then there is no example
        return None
    return made if fits else None


def _sample(schema: Any, root: dict[str, Any], depth: int) -> Any:
    if depth > 8 or not isinstance(schema, dict):
        return {}
    reference = schema.get("$ref", "")
    if reference.startswith("#/$defs/"):
        return _sample(root["$defs"][reference.rpartition("/")[2]], root, depth + 1)
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _sample(schema[key][0], root, depth + 1)
    return _sample_of_type(schema, root, depth)


_SAMPLES = {
    "date": "2025-01-31",
    "time": "12:00:00",
    "date-time": "2025-01-31T12:00:00Z",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "duration": "PT1H",
}


def _sample_of_type(schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _sample(properties.get(name, {}), root, depth + 1) for name in schema.get("required", ())}
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})] * schema.get("minItems", 1)
        return [_sample(item, root, depth + 1) for item in items]
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("maximum", schema.get("exclusiveMinimum", -1) + 1))
    if kind == "string":
        return _SAMPLES.get(schema.get("format", ""), "text")
    return {"boolean": True, "null": None}[kind]
