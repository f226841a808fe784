"""The key of a deed: what a tool's author says makes two calls the same one, in this run or in another.

It looks nothing up and stores nothing; the outcome index does. Pure.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from agentflow.errors import ToolFailedError
from agentflow.events import plain
from agentflow.messages import clean_text
from agentflow.tools.failures import described
from agentflow.tools.registry import Tool

_MAX_KEY = 512  # characters


def canonical(value: Any) -> str:
    """`value` as the one JSON text that it has: keys sorted, no spaces, a whole number the same as 5 and as 5.0.

    What JSON cannot carry is written as `events.plain` writes it.
    """
    return json.dumps(_numbers(plain(value)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def key_of(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """The key of this call, or None if `tool` declares none. `arguments` fit the tool's schema.

    Names give the tool's name and a SHA-256 over those arguments; one that was left out counts as its default, else as
    null, but one of them must say something, else all such calls would be the same. A function gives its text as it is,
    and is given the arguments as they are. Raises
    `ToolFailedError`, for the call must not run, if there is no key, or none of at most 512 characters, or the
    function raises.
    """
    declared = tool.idempotency_key
    if declared is None:
        return None
    if callable(declared):
        return _made(tool, declared, arguments)
    values = {name: arguments.get(name) for name in declared}
    if all(value is None or (isinstance(value, str) and not value.strip()) for value in values.values()):
        raise ToolFailedError(f"{tool.name}: the call has no idempotency key, give {' or '.join(map(repr, values))}")
    values |= {name: _default(tool, name) for name in declared if name not in arguments}
    return f"{tool.name}:{hashlib.sha256(canonical(values).encode()).hexdigest()}"


def _default(tool: Tool, name: str) -> Any:
    schema = tool.parameters["properties"][name]
    return schema.get("default") if isinstance(schema, dict) else None  # `true` is a schema too


def _made(tool: Tool, make: Callable[[Mapping[str, Any]], str], arguments: Mapping[str, Any]) -> str:
    try:
        key: Any = make(copy.deepcopy(dict(arguments)))  # it may change what it is given, not what the tool gets
    except BaseException as error:  # whatever it raises, the call has no key
        raise ToolFailedError(f"{tool.name}: idempotency_key raised {described(error)}") from error
    if not isinstance(key, str):
        raise ToolFailedError(f"{tool.name}: idempotency_key returned {type(key).__name__}, expected a text")
    if not key.strip() or len(key) > _MAX_KEY or clean_text(key) != key:
        raise ToolFailedError(
            f"{tool.name}: idempotency_key returned a text of {len(key)} characters, expected 1 to {_MAX_KEY}"
            " characters that are not all blank and can be UTF-8"
        )
    return key


def _numbers(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    return [_numbers(item) for item in value] if isinstance(value, list) else value
