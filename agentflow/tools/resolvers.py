"""From the text of a model to arguments that fit a tool's schema, or a refusal that tells the model what to do.

The text is read as JSON, goes through an ordered chain of resolvers that correct its notation, and is validated
strictly. Arguments that fit are never changed; nothing is guessed: cut JSON stays cut, a string stays a string, no
default is filled in. What each correction is stands in `repair`, `smuggled` and `coercion`.
"""

import difflib
import enum
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from jsonschema import ValidationError
from jsonschema.exceptions import best_match

from agentflow.errors import ToolArgumentsError
from agentflow.events import plain
from agentflow.messages import clean_text
from agentflow.tools import repair
from agentflow.tools.coercion import Coercion, Correction
from agentflow.tools.registry import Tool
from agentflow.tools.smuggled import Part, allows_packed_text, take_apart

_MAX_DEPTH = 64
_MAX_VALUES = 5_000  # in all, of one call: validation takes up to 20 µs for each, and the loop waits for it
_MAX_CORRECTED = 64 * 1024  # characters: longer text is only read strictly and validated
_MAX_NAME = 100  # characters of an unknown name for which a near one is looked for
_MAX_ERRORS = 5
_NO_SCHEMA = ("members", "default", "metadata")  # parts of a pydantic core schema that hold a user's values
_MAY_PACK = re.compile(r"[=:＝：]")  # packed text names its parts, and a name is followed by one of these
_MAX_LINE = 300  # characters of one line of a refusal

Mode: TypeAlias = Literal["lenient", "strict"]


class Resolved(NamedTuple):
    """Arguments, and how they differ from what the model wrote, in the order of the changes."""

    arguments: Any
    corrections: tuple[Correction, ...] = ()


Resolver: TypeAlias = Callable[[Tool, Any], Resolved]
"""One step of the chain. It gets what the steps before made of the call: text where that is no JSON yet, else JSON
data, which it does not change in place. It changes nothing that it does not understand, and raises ValueError to
refuse the call; the text is told to the model."""


def repair_text(tool: Tool, arguments: Any) -> Resolved:
    """Read text that is JSON but for its notation, and a call that is JSON text within JSON."""
    if not isinstance(arguments, str):
        return Resolved(arguments)
    value = repair.repaired(arguments)
    if isinstance(value, str):
        value = repair.repaired(value)
    return Resolved(value, (Correction("", arguments, value, "json"),))


def match_names(tool: Tool, arguments: Any) -> Resolved:
    """The tool's names for keys that differ in case or style; keys that mean nothing to it are left out."""
    corrections: list[Correction] = []
    if isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], dict):
        corrections.append(Correction("", arguments, arguments[0], "one_of_list"))
        arguments = arguments[0]
    if not isinstance(arguments, dict):
        return Resolved(arguments)
    coercion = Coercion(tool.contract.validator, {})
    named = coercion.name_keys(arguments, tool.parameters)
    return Resolved(named if coercion.made else arguments, (*corrections, *coercion.made))


def take_apart_packed(tool: Tool, arguments: Any) -> Resolved:
    """Give each parameter its own part of a text that names several: "orderId=ORD123&type=paid".

    Every part must name a parameter, this one among them. Raises ValueError if a part contradicts another argument.
    """
    properties = tool.parameters.get("properties", {})
    corrections: list[Correction] = []
    if not isinstance(arguments, dict):
        return Resolved(arguments)
    result = dict(arguments)
    for name, value in arguments.items():
        schema = properties.get(name)
        if not isinstance(value, str) or not isinstance(schema, dict) or value in schema.get("enum", ()):
            continue
        parts = None if allows_packed_text(name, schema, tool.examples) else take_apart(value, name, list(properties))
        if parts is not None:
            others = {key: item for key, item in result.items() if key != name and item is not None}
            own = _sorted_out(name, parts, others)
            result = {key: item for key, item in result.items() if key != name} | own
            corrections.append(Correction(name, value, own, "taken_apart"))
    return Resolved(result, tuple(corrections)) if corrections else Resolved(arguments)


def _sorted_out(name: str, parts: Sequence[Part], others: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in parts:
        key = part.key or name
        if str({**others, **found}.get(key, part.value)) != part.value:
            raise ValueError(f"{name}: its text says something else about {key!r} than {key!r} itself")
        if key not in others:
            found[key] = part.value
    return found


def fit_values(tool: Tool, arguments: Any) -> Resolved:
    """Values, and names within them, as the schema has them where there is one reading; see `coercion`."""
    validator = tool.contract.validator
    coercion = Coercion(validator, _member_names(tool))
    return Resolved(coercion.fit(arguments, validator.schema), tuple(coercion.made))


DEFAULT_RESOLVERS: tuple[Resolver, ...] = (repair_text, match_names, take_apart_packed, fit_values)


def resolve(
    tool: Tool,
    raw_arguments: str | None,
    *,
    resolvers: Sequence[Resolver] = DEFAULT_RESOLVERS,
    mode: Mode = "lenient",
) -> Resolved:
    """The arguments in `raw_arguments`, as plain JSON data that fits the tool's schema, and their corrections.

    Blank text, None and `null` mean no arguments. NaN, infinities, a key given twice, nesting over 64 levels and
    more than 5,000 values are refused. Text over 64 KiB goes through no resolver of `DEFAULT_RESOLVERS`. "strict"
    runs no resolver: text that is not JSON and other arguments packed into a text are refused too. Raises
    `ToolArgumentsError`, whose text is for the model: each field, what is wrong with it, what is allowed, and an
    example.
    """
    value, fault = _parse(raw_arguments)
    if len(raw_arguments or "") > _MAX_CORRECTED:
        resolvers = [resolver for resolver in resolvers if resolver not in DEFAULT_RESOLVERS]
    elif resolvers is DEFAULT_RESOLVERS and _fits_as_it_is(tool, value):
        return Resolved({clean_text(key): plain(item) for key, item in value.items()})
    corrections: list[Correction] = []
    for resolver in resolvers if mode == "lenient" else ():
        _check_size(tool, value)
        value, made = _step(tool, resolver, value, fault)
        corrections += made
        fault = fault if isinstance(value, str) else ""
    _check_size(tool, value)
    if not isinstance(value, dict):
        raise _refusal(tool, [fault or _no_object(value)])
    arguments = {clean_text(key): plain(item) for key, item in value.items()}
    problems = _problems(tool, arguments)
    if mode == "strict" or take_apart_packed in resolvers:
        problems = problems or _still_packed(tool, arguments)
    if problems:
        raise _refusal(tool, problems)
    return Resolved(arguments, tuple(corrections))


def _fits_as_it_is(tool: Tool, value: Any) -> bool:
    """Whether the chain would change nothing: the usual case, and a tenth of the chain's cost."""
    if not isinstance(value, dict) or any(isinstance(item, str) and _MAY_PACK.search(item) for item in value.values()):
        return False
    _check_size(tool, value)
    return not _problems(tool, value)


def _parse(raw_arguments: str | None) -> tuple[Any, str]:
    """The value of JSON, or the text as it is; and if it is text, why it cannot be arguments."""
    text = (raw_arguments or "").strip()
    if text in ("", "null"):
        return {}, ""
    try:
        value = repair.loads(text)
    except (ValueError, RecursionError) as error:
        return text, f"not valid JSON: {str(error) or 'nested too deeply'}"
    return value, _no_object(value) if isinstance(value, str) else ""


def _no_object(value: Any) -> str:
    return f"expected a JSON object, got {_json(value)}"


def _still_packed(tool: Tool, arguments: dict[str, Any]) -> list[str]:
    """Packed text must not reach a function, also if it came out of a list or of other packed text."""
    packed = _step(tool, take_apart_packed, arguments, "").corrections
    return [f"{one.field}: {_json(one.before)} is several arguments in one" for one in packed]


def _step(tool: Tool, resolver: Resolver, value: Any, fault: str) -> Resolved:
    try:
        return _checked(resolver(tool, value))
    except ToolArgumentsError:
        raise
    except ValueError as error:
        raise _refusal(tool, [fault or str(error)]) from error
    except Exception as error:  # whatever a resolver runs into, the call is not run
        raise _refusal(tool, [fault or f"could not be checked ({type(error).__name__})"]) from error


def _checked(found: Any) -> Resolved:
    if not isinstance(found, Resolved):
        raise TypeError(f"a resolver returned {type(found).__name__}, expected Resolved")
    corrections = tuple(found.corrections)
    if not all(isinstance(one, Correction) for one in corrections):
        raise TypeError("a resolver returned Resolved with corrections that are no Correction")
    return Resolved(found.arguments, corrections)


def _member_names(tool: Tool) -> dict[tuple[str, ...], dict[str, Any]]:
    """For each enumeration class of the tool, by its values as JSON: its members' names and values."""
    names: dict[tuple[str, ...], dict[str, Any]] = {}
    waiting: list[Any] = [adapter.core_schema for adapter in tool.contract.adapters.values()]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(value for key, value in item.items() if key not in _NO_SCHEMA)
            members = item.get("members", ()) if item.get("type") == "enum" else ()
            named = [one for one in members if isinstance(one, enum.Enum)]
            if all(isinstance(one.value, str | int) for one in named):
                values = tuple(json.dumps(one.value) for one in named)
                names[values] = {
                    name: one.value for one in named for name in (one.name, f"{type(one).__name__}.{one.name}")
                }
        elif isinstance(item, list | tuple):
            waiting.extend(item)
    return names


def _check_size(tool: Tool, value: Any) -> None:
    problem = _oversize(value) if isinstance(value, dict | list) else ""
    if problem:
        raise _refusal(tool, [problem])


def _oversize(value: dict[str, Any] | list[Any]) -> str:
    """What is too much about `value`, or nothing."""
    level: list[Any] = [value]
    count = 0
    for _ in range(_MAX_DEPTH):
        count += sum(map(len, level))
        if count > _MAX_VALUES:
            return f"more than {_MAX_VALUES} values; give fewer at a time"
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return ""
    return f"nested deeper than {_MAX_DEPTH} levels"


def _problems(tool: Tool, arguments: dict[str, Any]) -> list[str]:
    try:
        errors = tool.contract.validator.iter_errors(arguments)
        return list(itertools.islice((line for error in errors for line in _explain(error)), _MAX_ERRORS))
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
    close = difflib.get_close_matches(name, known, n=1) if len(name) <= _MAX_NAME else []
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
