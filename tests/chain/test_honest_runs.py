"""Whatever the tools did and the model says of it: success is never told where there was none, or it is marked."""

import pytest
from pydantic import BaseModel

from agentflow import Agent
from agentflow.events import EventType
from agentflow.messages import unpaired
from agentflow.testing import ScriptedModel, assert_laws, call
from agentflow.tools.asking import ask_user
from tests.builders import log_of, of

pytestmark = pytest.mark.virtual_time

OPTIMISTS = {
    "English": "Great news! All six orders have been placed.",
    "Chinese": "太好了！六个订单都已经成功提交。",
    "German": "Alles erledigt, die Bestellungen sind aufgegeben.",
    "vague": "Here you go!",
}
ADMISSIONS = {
    "English": "I am sorry, the orders could not be placed: the shop is closed.",
    "Chinese": "抱歉，订单提交失败了，商店已关门。",
}


async def order(item: str) -> dict:
    """Order an item: the shop is always closed."""
    return {"ok": False, "message": f"closed, no {item}"}


async def stock(item: str) -> str:
    """Look up the stock, which works."""
    return f"there is {item}"


def same(count):
    return [[call("order", item="tea")] for _ in range(count)]


def different(count):
    return [[call("order", item=f"tea {number}")] for number in range(count)]


CALLS = {
    "one after another, the same": same(6),
    "one after another, different": different(6),
    "at once, the same": [[call("order", item="tea")] * 6],
    "at once, different": [[call("order", item=f"tea {number}") for number in range(6)]],
    "in two rounds": [[call("order", item=f"tea {n}{number}") for number in range(3)] for n in "ab"],
    "after a success": [[call("stock", item="tea")], *different(6)],
    "invented names": [[call("buy", item="tea")] * 3, [call("order", item="tea")] * 3],
    "wrong arguments": [[call("order", thing={"a": 1})] * 6],
}


async def play(*script, tools=(order, stock), **options):
    """The reply to one message, its log, and the model that gave it."""
    model = ScriptedModel(*script)
    async with Agent(model=model, tools=tools, **options) as agent:
        chain = agent.start("Order tea.")
        reply = await chain.reply()
        log = await log_of(agent, chain.run_id)
    assert_laws(log)
    return reply, log, model


def marks(log, code="unsupported_success"):
    return [event for event in of(log, EventType.WARNING) if event.code == code]


@pytest.mark.parametrize("optimist", OPTIMISTS.values(), ids=OPTIMISTS)
@pytest.mark.parametrize("rounds", CALLS.values(), ids=CALLS)
async def test_six_failing_calls_and_an_optimist_are_never_an_unmarked_success(rounds, optimist):
    reply, log, model = await play(*rounds, optimist, optimist, "never asked for")
    failures = [record for record in reply.tools if record.tool != "stock"]
    assert all(record.status != "success" for record in failures)
    assert all(record.result.startswith("[error: ") for record in failures)
    if log[-1].finish_reason == "stop":
        assert len(marks(log)) == 1
        assert "unsupported_success" in reply.warnings
        assert len(model.requests) == len(rounds) + 2
        asked = model.requests[-1].messages[-1]
        assert (asked.role, asked.content) == ("user", marks(log)[0].message)
        assert reply.text == optimist
    else:
        assert log[-1].finish_reason == "loop"
        assert "repeated over and over" in reply.text


@pytest.mark.parametrize("admission", ADMISSIONS.values(), ids=ADMISSIONS)
async def test_an_optimist_who_thinks_again_is_heard_and_the_first_answer_stands_in_the_log(admission):
    reply, log, model = await play(*different(6), OPTIMISTS["English"], admission)
    assert (reply.text, reply.warnings) == (admission, ("unsupported_success",))
    assert [len(model.requests), len(reply.tools)] == [8, 6]
    told = "".join(event.text for event in of(log, EventType.DELTA) if event.iteration == 7)
    assert told == OPTIMISTS["English"]


@pytest.mark.parametrize("admission", ADMISSIONS.values(), ids=ADMISSIONS)
async def test_an_admission_is_left_alone(admission):
    reply, log, model = await play(*different(6), admission)
    assert (reply.text, reply.warnings, marks(log), len(model.requests)) == (admission, (), [], 7)


async def test_success_after_a_success_is_left_alone():
    reply, log, _ = await play(*different(2), [call("stock", item="tea")], "There is tea in stock.")
    assert (reply.warnings, marks(log), reply.tools[-1].status) == ((), [], "success")


async def test_a_model_that_tries_again_after_it_was_asked_may_succeed():
    reply, log, _ = await play(
        *different(1), OPTIMISTS["English"], [call("stock", item="tea")], "There is tea in stock."
    )
    assert ([record.status for record in reply.tools], reply.text) == (["error", "success"], "There is tea in stock.")
    assert len(marks(log)) == 1


async def test_at_the_last_round_the_answer_is_marked_without_another_call():
    reply, log, model = await play(*different(2), OPTIMISTS["English"], max_iterations=3)
    assert (len(model.requests), reply.warnings, len(marks(log))) == (3, ("unsupported_success",), 1)
    assert (log[-1].finish_reason, reply.text) == ("stop", OPTIMISTS["English"])


class Receipt(BaseModel):
    placed: bool
    note: str = ""


async def test_an_answer_in_a_form_is_asked_for_again_in_that_form():
    lie, truth = '{"placed": true, "note": "done"}', '{"placed": false, "note": "failed: the shop is closed"}'
    reply, log, _ = await play(*different(1), lie, truth, output=Receipt)
    assert reply.output == Receipt(placed=False, note="failed: the shop is closed")
    assert (reply.warnings, len(marks(log))) == (("unsupported_success",), 1)


async def test_both_corrections_of_a_form_and_of_a_claim_are_made_once_each():
    lie, truth = '{"placed": true, "note": "done"}', '{"placed": false, "note": "failed"}'
    reply, _, _ = await play(*different(1), "Done!", "Done!!", truth, output=Receipt)
    assert (reply.output.placed, reply.warnings) == (False, ("unsupported_success", "output_invalid"))
    reply, _, model = await play(*different(1), "Done!", lie, "never asked for", output=Receipt)
    assert (reply.output.placed, reply.warnings, len(model.requests)) == (True, ("unsupported_success",), 3)


async def test_the_conversation_goes_on_after_a_marked_answer():
    model = ScriptedModel(*different(1), OPTIMISTS["English"], OPTIMISTS["English"], "You are welcome.")
    async with Agent(model=model, tools=[order]) as agent:
        await agent.chat("Order tea.", session_id="s")
        assert (await agent.chat("Thanks.", session_id="s")).text == "You are welcome."
    assert unpaired(model.requests[-1].messages) is None


# -- agents that are called ----------------------------------------------------------------------------------


async def delegate(*says, then):
    """A clerk whose orders fail and who then says this, and a caller who is told and says `then`."""
    clerk = Agent(name="clerk", model=ScriptedModel(*different(2), *says), tools=[order])
    return await play([call("clerk", input="Order tea.")], *then, tools=[clerk.as_tool()])


@pytest.mark.parametrize("says", [(OPTIMISTS["English"],) * 2, (ADMISSIONS["English"],)], ids=["insists", "admits"])
async def test_a_caller_cannot_claim_what_its_agent_did_not_do(says):
    lie = "The clerk has ordered the tea."
    reply, log, model = await delegate(*says, then=(lie, ADMISSIONS["English"]))
    (record,) = reply.tools
    assert record.status == "error"
    assert record.result.startswith("[error: failed]\nthe last tool calls of this agent have all failed; it says:\n")
    assert record.result.endswith(says[-1])
    assert [mark.path for mark in marks(log)] == [("agent", "clerk")] * (len(says) - 1) + [("agent",)]
    assert (reply.text, reply.warnings, len(model.requests)) == (ADMISSIONS["English"], ("unsupported_success",), 3)


async def test_an_agent_that_is_called_is_asked_once_as_well():
    reply, log, _ = await delegate(OPTIMISTS["English"], ADMISSIONS["English"], then=("It did not work, sorry.",))
    (mark,) = marks(log)
    assert (mark.path, reply.warnings) == (("agent", "clerk"), ())
    assert reply.tools[0].result.endswith(ADMISSIONS["English"])


async def test_an_agent_whose_last_call_worked_has_its_answer_believed():
    clerk = Agent(
        name="clerk",
        model=ScriptedModel(*different(1), [call("stock", item="tea")], "There is tea."),
        tools=[order, stock],
    )
    reply, log, _ = await play([call("clerk", input="Is there tea?")], "There is.", tools=[clerk.as_tool()])
    assert (reply.tools[0].result, reply.warnings, marks(log)) == ("[success]\nThere is tea.", (), [])


async def test_a_user_who_was_asked_in_between_has_done_nothing():
    model = ScriptedModel(
        *different(6), [call("ask_user", question="Shall I try again?")], OPTIMISTS["English"], ADMISSIONS["English"]
    )
    async with Agent(model=model, tools=[order, ask_user]) as agent:
        chain = agent.start("Order tea.")
        await chain.reply()
        chain.answer("Never mind.")
        await chain
        reply = await chain.reply()
        log = await log_of(agent, chain.run_id)
    assert_laws(log)
    assert (reply.text, reply.warnings, len(marks(log))) == (ADMISSIONS["English"], ("unsupported_success",), 1)
