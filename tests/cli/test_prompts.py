import signal

import pytest

from agentflow.cli.prompts import summary
from agentflow.events import ApprovalEvent, QuestionEvent
from agentflow.testing import FakeProvider, text, tool_calls

COMMON = {"run_id": "r", "chain_id": "r", "session_id": "s", "path": ("agent",), "trace_id": "0" * 32}
APPROVE = "approve? y, n [why], or e to edit the arguments: "
CLEAR = "\x15"  # the line that is typed
END = "\x04"

TOOLS = """
import json
from agentflow import Agent, tool
from agentflow.models.scripted import ScriptedModel, call
from agentflow.tools import ask_user

@tool(approval=lambda arguments: "more\\nthan 100" if arguments["amount"] > 100 else None)
def refund(order_id: str, amount: int) -> str:
    return f"paid back {amount} for {order_id}"

model = ScriptedModel([call("refund", order_id="A\\x1b[2J\\u202e", amount=500)], "A is paid back.")
TOOLS = [Agent(name="billing", model=model, tools=[refund]).as_tool()]
"""


@pytest.fixture
def flags(tmp_path):
    (tmp_path / "till.py").write_text(TOOLS)
    return ("--tools", "till")


def refund(order_id, amount):
    return tool_calls(("refund", {"order_id": order_id, "amount": amount}))


def results(provider):
    """What the tools have given, as the model was told last."""
    return [message["content"] for message in provider.requests[-1].body["messages"] if message["role"] == "tool"]


async def test_a_call_is_approved_or_rejected_with_a_reason(on_terminal, flags):
    scripts = (refund("A", 150), text("A is paid back."), refund("B", 250), text("B was not paid back."))
    async with FakeProvider(*scripts) as provider, on_terminal(provider, *flags) as (process, terminal):
        await terminal.shows("> ")
        terminal.type("Pay back A\r")
        await terminal.shows(APPROVE)
        assert (
            'refund needs your approval: more than 100\r\n{\r\n  "order_id": "A",\r\n  "amount": 150\r\n}'
            in terminal.shown
        )
        terminal.type("y\r")
        await terminal.shows("> ", 2)
        terminal.type("Pay back B\r")
        await terminal.shows(APPROVE, 2)
        terminal.type("perhaps\r")
        await terminal.shows(APPROVE, 3)
        terminal.type("n it is not ours\r")
        await terminal.shows("> ", 3)
        terminal.type("/quit\r")
        assert await process.wait() == 0
    approved, rejected = results(provider)
    assert approved == "[success]\npaid back 150 for A"
    assert rejected.startswith("[rejected]")
    assert "it is not ours" in rejected


async def test_the_arguments_of_a_call_are_edited_until_they_fit(on_terminal, flags):
    scripts = (refund("Köln", 300), text("Paid back."))
    typed = [CLEAR + "{", CLEAR + "[1]", CLEAR + '{"order_id": "Köln", "amount": "much"}', "\x7f\x7f}"]
    async with FakeProvider(*scripts) as provider, on_terminal(provider, *flags, "Pay back") as (process, terminal):
        for times, line in enumerate(typed, 1):
            await terminal.shows(APPROVE, times)
            terminal.type("e\r")
            await terminal.shows('arguments: {"order_id": "Köln", "amount": 300}', times)
            terminal.type(f"{line}\r")
        assert await process.wait() == 0
        await terminal.shows("Paid back.")
    assert results(provider) == ["[success]\npaid back 30 for Köln"]
    for told in ("this is not JSON: ", "expected an object", "agentflow: "):
        assert terminal.shown.count(told) == 1


async def test_a_question_is_answered_by_a_number_or_in_own_words(on_terminal, flags):
    asked = tool_calls(("ask_user", {"question": "Which order?", "options": ["A-17", "A-18"]}))
    again = tool_calls(("ask_user", {"question": "From where?", "options": ["Berlin", "Rome"]}))
    written = text('{"question": "Where to?", "options": ["12", "Berlin"]}')
    scripts = (asked, again, written, text("On its way."))
    async with FakeProvider(*scripts) as provider, on_terminal(provider, *flags, "Send it") as (process, terminal):
        for prompts, typed in [(1, "2"), (3, "the old house"), (5, "12")]:
            await terminal.shows("a number, or your own words: ", prompts)
            terminal.type("\r")  # no answer
            await terminal.shows("a number, or your own words: ", prompts + 1)
            terminal.type(f"{typed}\r")
        assert await process.wait() == 0
        await terminal.shows("On its way.")
    assert "Which order?\r\n  1  A-17\r\n  2  A-18\r\n" in terminal.shown
    assert results(provider) == ["[success]\nA-18", "[success]\nthe old house"]
    assert provider.requests[-1].body["messages"][-1] == {"role": "user", "content": "12"}


async def test_what_an_agent_below_waits_for_is_decided_here_and_nothing_of_it_is_hidden(on_terminal, flags):
    scripts = (tool_calls(("billing", {"input": "Pay back A"})), text("Done."))
    async with FakeProvider(*scripts) as provider, on_terminal(provider, *flags, "Pay back A") as (process, terminal):
        await terminal.shows(APPROVE)
        assert "agent > billing: refund needs your approval: more than 100\r\n" in terminal.shown
        assert '"order_id": "A\\u001b[2J\\u202e"' in terminal.shown
        terminal.type("yes\r")
        assert await process.wait() == 0
        await terminal.shows("Done.")
    assert "  \u2514 refund" in terminal.shown
    assert results(provider) == ["[success]\nA is paid back."]


async def test_ctrl_d_at_a_prompt_cancels_the_run_and_the_conversation_goes_on(on_terminal, flags):
    scripts = (refund("A", 150), text("Hello again."))
    async with FakeProvider(*scripts) as provider, on_terminal(provider, *flags) as (process, terminal):
        await terminal.shows("> ")
        terminal.type("Pay back A\r")
        await terminal.shows(APPROVE)
        terminal.type(END)
        await terminal.shows("(cancelled: user)")
        await terminal.shows("> ", 2)
        terminal.type("Hello?\r")
        await terminal.shows("Hello again.")
        await terminal.shows("> ", 3)
        terminal.type(END)
        assert await process.wait() == 0
    assert "was not run" in results(provider)[0]


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "user"), (signal.SIGTERM, "shutdown")])
async def test_a_signal_at_a_prompt_cancels_the_run(on_terminal, flags, wait_until_asleep, number, reason):
    async with (
        FakeProvider(refund("A", 150)) as provider,
        on_terminal(provider, *flags, "Pay back A") as (process, terminal),
    ):
        await terminal.shows(APPROVE)
        wait_until_asleep(process)
        process.send_signal(number)
        assert await process.wait() == 130
        await terminal.shows(f"(cancelled: {reason})")
    assert "Traceback" not in terminal.shown


def test_what_a_run_waits_for_is_told_in_a_line():
    approval = ApprovalEvent(call_id="c", tool="find", arguments={"a": [1]}, arguments_hash="", reason="odd", **COMMON)
    question = QuestionEvent(question_id="q", text="Which?", options=("one", "two"), **COMMON)
    assert summary(approval) == "find(a=[1]) waits for approval (odd)"
    assert summary(question) == "the agent asks: Which? (one, two)"
