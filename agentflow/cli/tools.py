"""What `agentflow tools` shows of tools: as lines for people, as JSON for programs.

Where tools come from is in `config`; nothing is run here.
"""

import json
from typing import Any

import msgspec

from agentflow.cli.screen import columns, one_line
from agentflow.tools.registry import Tool, ToolRegistry


def lines(registry: ToolRegistry) -> list[str]:
    """Each tool's name and description, and below them its parameters."""
    return [line for tool in registry for line in _lines(tool)]


def as_json(registry: ToolRegistry) -> str:
    """What a model is told about the tools: a list of objects with name, description, parameters and examples."""
    return json.dumps(msgspec.to_builtins(registry.specs()), indent=2, ensure_ascii=False)


def _lines(tool: Tool) -> list[str]:
    required = tool.parameters.get("required", ())
    rows = [
        (name, f"{_kind(schema)}{'' if name in required else ', optional'}", one_line(schema.get("description", "")))
        for name, schema in tool.parameters.get("properties", {}).items()
    ]
    head = f"{tool.name}: {one_line(tool.description) or 'no description'}"
    return [head, *(f"  {line}" for line in columns(rows))]


def _kind(schema: dict[str, Any]) -> str:
    """The type of a parameter in a word or two; its whole schema is in the JSON."""
    if "enum" in schema:
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    kind = schema.get("type", "object" if "$ref" in schema else "any")
    return kind if isinstance(kind, str) else " or ".join(kind)
