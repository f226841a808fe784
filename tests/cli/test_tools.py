import json

import pytest

from agentflow import tool
from agentflow.cli.tools import as_json, lines
from agentflow.tools import ToolRegistry

SHOP = '''
from typing import Literal
from agentflow import tool

print("imported")

@tool(examples=[{"order_id": "A1"}])
def cancel(order_id: str, why: Literal["late", "broken"] | None = None) -> str:
    """Cancel an order.

    Args:
        order_id: Number of the order.
        why: The reason.
    """
    return "done"
'''


def test_each_tool_is_shown_with_its_parameters():
    @tool(parameters={"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {}}})
    def odd(**arguments):
        pass

    @tool
    def bare():
        pass

    assert lines(ToolRegistry([odd, bare])) == [
        "odd: no description",
        "  a  string or null, optional",
        "  b  any, optional",
        "bare: no description",
    ]
    assert lines(ToolRegistry([])) == []


def test_the_json_is_what_a_model_is_told():
    @tool(examples=[{"city": "Köln"}])
    def weather(city: str) -> str:
        """Tell the weather."""

    (shown,) = json.loads(as_json(ToolRegistry([weather])))
    assert (shown["name"], shown["description"], shown["examples"]) == (
        "weather",
        "Tell the weather.",
        [{"city": "Köln"}],
    )
    assert shown["parameters"]["required"] == ["city"]


@pytest.fixture
def shown(agentflow, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")

    async def run(*arguments, **variables):
        async with agentflow("tools", *arguments, **variables) as command:
            return await command.finished()

    return run


async def test_the_command_shows_the_tools_that_chat_would_offer(shown):
    built_in = await shown()
    assert (built_in.code, built_in.err) == (0, "")
    assert "calculator: " in built_in.out
    configured = await shown(AGENTFLOW_TOOLS__PACKAGES='["shop"]')
    assert [line.split(maxsplit=2) for line in configured.out.splitlines()] == [
        ["imported"],
        ["cancel:", "Cancel", "an order."],
        ["order_id", "string", "Number of the order."],
        ["why", '"late"', 'or "broken" or null, optional  The reason.'],
    ]
    assert (await shown("--tools", "none")).out == "no tools\n"


async def test_the_json_is_alone_on_standard_output(shown):
    done = await shown("--tools", "shop,agentflow.tools.builtin", "--json")
    assert [entry["name"] for entry in json.loads(done.out)] == ["cancel", "calculator", "current_time"]
    assert (done.code, done.err) == (0, "imported\n")


async def test_lint_tells_what_will_mislead_a_model_and_exits_with_1(shown, tmp_path):
    (tmp_path / "misleading.py").write_text(
        "from agentflow import tool\n\n\n@tool\ndef look(path: int) -> str:\n    return str(path)\n"
    )
    found = await shown("--tools", "misleading", "--lint")
    assert (found.code, "look: parameter 'path'" in found.out) == (1, True)
    assert (await shown("--tools", "agentflow.tools.builtin", "--lint")).out == "nothing found\n"
