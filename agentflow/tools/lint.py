"""What about a tool will mislead a model, though it works: for the eyes of its author.

It refuses nothing: what cannot be a tool at all is refused by `registry` and `schema`. Pure.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from agentflow.tools.names import same
from agentflow.tools.registry import Tool, lost_overrides

_MIN_DESCRIPTION = 10  # characters

# The last word of a parameter's name, and the JSON types that such a thing cannot have.
_NO_NUMBER = ("integer", "number", "boolean")
_CONTRADICTIONS = {
    **dict.fromkeys(("path", "file", "filename", "folder", "directory", "url", "uri", "email"), _NO_NUMBER),
    **dict.fromkeys(("name", "text", "title", "message", "description", "query"), _NO_NUMBER),
    **dict.fromkeys(("count", "limit", "offset", "quantity"), ("boolean", "array", "object")),
}


def lint(tool: Tool) -> list[str]:
    """One line for each thing that is wrong with what a model is told about `tool`; the first word is its name."""
    lines = [f"{tool.name}: {problem}" for problem in _of_tool(tool)]
    for name, schema in tool.parameters.get("properties", {}).items():
        if isinstance(schema, dict):
            lines += [f"{tool.name}: parameter {name!r} {problem}" for problem in _of_parameter(tool, name, schema)]
    return lines


def lint_all(tools: Iterable[Tool]) -> list[str]:
    """`lint` of each, and the methods of their objects that override a tool but lost its decorator."""
    tools = list(tools)
    lines = [line for tool in tools for line in lint(tool)]
    owners = {id(owner): owner for tool in tools if (owner := getattr(tool.function, "__self__", None)) is not None}
    for owner in owners.values():
        for name in lost_overrides(owner):
            kind = type(owner).__qualname__
            lines.append(f"{name}: {kind}.{name} overrides a tool but has no @tool, so it is none; decorate it too")
    return lines


def _of_tool(tool: Tool) -> Iterator[str]:
    if not tool.description.strip():
        yield "has no description; write a docstring or @tool(description=...)"
    elif len(tool.description.strip()) < _MIN_DESCRIPTION:
        yield f"has a description of {len(tool.description.strip())} characters; say what it does and when to use it"


def _of_parameter(tool: Tool, name: str, schema: dict[str, Any]) -> Iterator[str]:
    if not schema.get("description"):
        yield "has no description; write it in the docstring's Args, or Annotated[..., Field(description=...)]"
    kind = schema.get("type")
    word = next((word for word in _CONTRADICTIONS if same(name).endswith(word) and _is_last_word(name, word)), None)
    if word is not None and kind in _CONTRADICTIONS[word]:
        yield f"is declared {kind}, which a {word} is not"
    default = schema.get("default")
    if default is not None and not tool.contract.validator.evolve(schema=schema).is_valid(default):
        yield f"has the default {default!r}, which does not fit its own schema"


def _is_last_word(name: str, word: str) -> bool:
    """Whether `word` is a word of its own: in `file_path` and `filePath`, not in `profile`."""
    before, last = name[: -len(word)], name[-len(word) :]
    return not before or before[-1] in "_-" or last[0].isupper()
