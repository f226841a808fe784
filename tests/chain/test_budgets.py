"""What ends a run that does not end by itself: circles, corrections in vain, and the budgets of calls, tokens and time.

Each end is told in words, and leaves a history that a strict provider takes.
"""

import asyncio

import pytest

from agentflow import Agent, InMemoryStore, ModelChunk, Settings, Usage, tool
from agentflow.errors import ModelConnectionError
from agentflow.events import EventType
from agentflow.messages import unpaired
from agentflow.state import TOKENS_NOTICE
from agentflow.stores.base import SessionKey
from agentflow.testing import ScriptedModel, assert_laws, call, text, tool_calls
from tests.builders import log_of, of, served

pytestmark = pytest.mark.virtual_time

SORRY = "Sorry about that."


async def play(*replies, tools, **options):
    """A run of these replies of a strict provider over HTTP, and one more message: end, log and number of requests."""
    store = InMemoryStore()
    async with served(*replies, tools=tools, store=store, **options) as (provider, agent):
        end = await agent.start("hello", session_id="s")
        asked = len(provider.requests)
        log = await log_of(agent, end.run_id)
        provider.scripts.clear()
        provider.scripts.append(text(SORRY))
        assert (await agent.chat("and now?", session_id="s")).text == SORRY
        assert provider.refusals == []
    assert_laws(log)
    for turn in await store.read_turns(SessionKey("s"), 0, 10):
        assert unpaired(turn.messages) is None
    return end, log, asked


class Door:
    """Tools that are called again and again: `look` sees what it is given, one thing after the other."""

    def __init__(self, *seen, **options):
        self.looks = 0

        @tool(**options)
        async def look(at: str = "door") -> str:
            """Look at something."""
            self.looks += 1
            return seen[min(self.looks, len(seen)) - 1]

        @tool(**options)
        async def knock(at: str = "door") -> str:
            """Knock at something."""
            return "nobody"

        self.tools = [look, knock]


def ends(log):
    """How each call ended, in order; "again" where it was answered from an earlier one."""
    return [
        getattr(event, "status", "success") if getattr(event, "reused_from", None) is None else "again"
        for event in of(log, EventType.TOOL_COMPLETE, EventType.TOOL_ERROR)
    ]


LOOK, KNOCK = ("look", {"at": "door"}), ("knock", {"at": "door"})


# -- circles -------------------------------------------------------------------------------------------------


async def test_a_repeated_call_is_answered_from_the_first_then_refused_then_the_run_ends():
    door = Door("closed")
    end, log, asked = await play(*[tool_calls(LOOK)] * 9, tools=door.tools)
    assert (ends(log), door.looks, asked) == (["success", "again", "loop", "loop"], 1, 4)
    first, again = of(log, EventType.TOOL_COMPLETE)
    assert (again.reused_from, again.result) == (first.call_id, first.result)
    assert [event.code for event in of(log, EventType.WARNING)] == ["loop_guard", "loop_guard"]
    assert (end.finish_reason, [record.status for record in end.tools][2:]) == ("loop", ["loop", "loop"])
    assert "repeated over and over" in end.text
    assert "Use that result" in of(log, EventType.TOOL_ERROR)[0].result


async def test_a_model_that_heeds_the_nudge_goes_on():
    door = Door("closed")
    end, log, _ = await play(*[tool_calls(LOOK)] * 3, tool_calls(KNOCK), text("Closed, nobody in."), tools=door.tools)
    assert (ends(log), end.finish_reason) == (["success", "again", "loop", "success"], "stop")


async def test_a_circle_of_two_is_seen():
    door = Door("closed")
    end, log, _ = await play(*[tool_calls(LOOK), tool_calls(KNOCK)] * 5, tools=door.tools)
    assert (end.finish_reason, ends(log)) == ("loop", ["success"] * 4 + ["loop"] * 2)


async def test_a_circle_of_whole_rounds_is_seen():
    door = Door("closed", idempotent=True)
    end, log, _ = await play(*[tool_calls(LOOK, KNOCK)] * 9, tools=door.tools)
    assert (end.finish_reason, door.looks) == ("loop", 2)
    assert ends(log) == ["success"] * 4 + ["loop"] * 4


async def test_failing_calls_go_round_in_circles_too():
    @tool
    async def look(at: str) -> str:
        """Fail to look at something."""
        raise ValueError("it is dark")

    end, log, _ = await play(*[tool_calls(LOOK)] * 9, tools=[look])
    assert (end.finish_reason, ends(log)) == ("loop", ["error", "error", "loop", "loop"])


async def test_a_poll_whose_result_changes_is_never_stopped():
    door = Door(*(f"{percent} %" for percent in range(0, 120, 10)), idempotent=True)
    end, log, _ = await play(*[tool_calls(LOOK)] * 12, text("It is open."), tools=door.tools)
    assert (end.finish_reason, door.looks, set(ends(log))) == ("stop", 12, {"success"})


async def test_what_an_idempotent_tool_is_asked_again_is_looked_up_again_before_it_is_a_circle():
    door = Door("closed", "closed", "open", idempotent=True)
    end, log, _ = await play(tool_calls(LOOK), tool_calls(KNOCK), tool_calls(LOOK), text("Closed."), tools=door.tools)
    assert (end.finish_reason, door.looks, ends(log)) == ("stop", 2, ["success"] * 3)


# -- bounds of calls and rounds ------------------------------------------------------------------------------


def looks(count, start=0):
    return tool_calls(*(("look", {"at": f"door {number}"}) for number in range(start, start + count)))


async def test_calls_over_the_bound_of_one_reply_are_refused_and_the_model_hears_of_each():
    door, settings = Door("closed"), Settings(chain={"max_round_calls": 3})
    end, log, asked = await play(looks(5), text("Some are closed."), tools=door.tools, settings=settings)
    assert (door.looks, sorted(ends(log)), asked) == (3, ["limit"] * 2 + ["success"] * 3, 2)
    assert [record.status for record in end.tools] == ["success"] * 3 + ["limit"] * 2
    assert (end.finish_reason, end.text) == ("stop", "Some are closed.")


@pytest.mark.parametrize("sizes", [(5,), (3, 2), (2, 2, 2), (1, 9)], ids=str)
async def test_calls_over_the_bound_of_a_run_end_it(sizes):
    door = Door("closed")
    replies = [looks(size, start=100 * number) for number, size in enumerate(sizes)]
    end, log, asked = await play(*replies, text("never asked for"), tools=door.tools, max_tool_calls=4)
    assert (door.looks, end.finish_reason, asked) == (4, "budget", len(sizes))
    assert "limit of 4 tool calls" in end.text
    assert sorted(ends(log)) == ["limit"] * (sum(sizes) - 4) + ["success"] * 4


async def test_the_bound_of_a_run_holds_for_it_and_the_agents_below():
    door = Door("closed")
    guard = Agent(name="guard", model=ScriptedModel(*[[call("look", at=f"{n}")] for n in range(9)]), tools=door.tools)
    end, log, asked = await play(
        tool_calls(("guard", {"input": "Look at the doors."})), tools=[guard.as_tool()], max_tool_calls=4
    )
    assert (door.looks, end.finish_reason, asked) == (3, "budget", 1)
    (record,) = end.tools
    assert record.status == "limit"
    assert record.result.startswith("[error: limit]\nI stopped here because this request reached its limit of 4 tool")
    assert sum(event.chain_id != event.run_id for event in of(log, EventType.TOOL_COMPLETE)) == 3


async def test_rounds_run_out_with_words_and_a_paired_history():
    door = Door("closed")
    end, _, asked = await play(
        *(looks(2, start=10 * number) for number in range(4)), tools=door.tools, max_iterations=3
    )
    assert (end.finish_reason, asked, door.looks) == ("max_iterations", 3, 4)
    assert [record.status for record in end.tools] == ["success"] * 4 + ["limit"] * 2


# -- corrections ---------------------------------------------------------------------------------------------

BAD = tool_calls(("look", {"at": {"a": 1}}))
INVENTED = tool_calls(("smell", {"at": "door"}))
BOTH = tool_calls(("look", {"at": {"a": 1}}), ("smell", {}))


@pytest.mark.parametrize("replies", [[BAD] * 9, [INVENTED] * 9, [BAD, INVENTED] * 5, [BOTH] * 9], ids=len)
async def test_a_model_is_corrected_three_times_in_a_row_then_the_run_ends_honestly(replies):
    door = Door("closed")
    end, log, asked = await play(*replies, tools=door.tools)
    assert (asked, end.finish_reason, door.looks) == (4, "budget", 0)
    assert "not carried out" in end.text
    assert set(ends(log)) <= {"invalid_arguments", "unknown_tool"}
    assert all(record.status != "success" for record in end.tools)


async def test_a_model_is_corrected_eight_times_in_all():
    door = Door("closed")
    mixed = [
        tool_calls(("look", {"at": f"{number}"}), ("look", {"at": {"a": number}}) if number % 2 else ("smell", {}))
        for number in range(12)
    ]
    end, _, asked = await play(*mixed, tools=door.tools)
    assert (asked, end.finish_reason, door.looks) == (9, "budget", 9)


async def test_a_model_that_corrects_itself_goes_on():
    door = Door("closed")
    end, log, _ = await play(
        BAD, INVENTED, BAD, tool_calls(LOOK), BAD, BAD, BAD, tool_calls(KNOCK), text("Done."), tools=door.tools
    )
    assert (end.finish_reason, end.text, ends(log).count("success")) == ("stop", "Done.", 2)


async def test_the_corrections_of_a_run_count_for_the_agents_below_it_too():
    door = Door("closed")
    child = ScriptedModel(*[[call("smell"), call("look", at=f"{n}")] for n in range(8)], "They are closed.")
    guard = Agent(name="guard", model=child, tools=door.tools)
    ask = tool_calls(("guard", {"input": "Look."}))
    end, _, asked = await play(ask, INVENTED, text("never asked for"), tools=[guard.as_tool()])
    assert (end.finish_reason, asked, door.looks) == ("budget", 2, 8)


# -- tokens --------------------------------------------------------------------------------------------------


def spending(tokens, *steps):
    """A turn of a model that says it took so many tokens."""
    usage = ModelChunk(usage=Usage(input_tokens=tokens, output_tokens=0), count=0)
    return [*steps, usage]


async def converse(model, tools, **options):
    async with Agent(model=model, tools=tools, **options) as agent:
        end = await agent.start("hello", session_id="s")
        log = await log_of(agent, end.run_id)
        assert_laws(log)
        kept = await agent._store.read_turns(SessionKey("s"), 0, 10)
        assert unpaired([message for turn in kept for message in turn.messages]) is None
        followed = await agent.start("again", session_id="s")
    return end, log, followed


async def test_a_run_ends_before_the_model_call_that_its_tokens_do_not_suffice_for():
    door = Door("closed")
    turns = [spending(480, call("look", at=f"{number}")) for number in range(2)]
    end, log, followed = await converse(ScriptedModel(*turns, "Hello again."), door.tools, token_budget=1000)
    assert (end.finish_reason, door.looks) == ("budget", 2)
    assert end.text == TOKENS_NOTICE.format(limit=1000)
    assert end.usage.input_tokens + end.usage.output_tokens <= 1000
    assert len(of(log, EventType.MODEL_START)) == 2
    assert followed.text == "Hello again."


async def test_a_budget_that_is_too_small_for_the_first_call_is_told_without_one():
    end, log, _ = await converse(ScriptedModel("never asked for"), [], token_budget=1)
    assert (end.finish_reason, of(log, EventType.MODEL_START)) == ("budget", [])


async def test_no_further_attempt_is_made_of_a_reply_that_the_tokens_do_not_suffice_for():
    asked = []

    async def breaking(request):
        asked.append(request)
        yield ModelChunk(text="So far ", usage=Usage(input_tokens=600, output_tokens=2))
        if len(asked) % 3:
            raise ModelConnectionError("gone")

    for budget, attempts, end in ((600, 1, "failed"), (1200, 2, "failed"), (1300, 3, "final")):
        asked.clear()
        async with Agent(model=breaking, token_budget=budget) as agent:
            chain = agent.start("hello")
            assert ((await chain).type, len(asked)) == (end, attempts)
            log = await log_of(agent, chain.run_id)
            assert_laws(log)
            assert end == "final" or log[-1].error.kind == "limit"


async def test_the_agents_below_take_from_the_same_tokens():
    door = Door("closed")
    child = ScriptedModel(*[spending(400, call("look", at=f"{number}")) for number in range(9)])
    guard = Agent(name="guard", model=child, tools=door.tools)
    model = ScriptedModel(spending(100, call("guard", input="Look.")), "The guard ran out.")
    end, _, _ = await converse(model, [guard.as_tool()], token_budget=1000)
    assert (end.finish_reason, door.looks) == ("budget", 2)
    assert end.usage.input_tokens + end.usage.output_tokens <= 1000
    assert (end.tools[0].status, TOKENS_NOTICE.format(limit=1000) in end.tools[0].result) == ("limit", True)


async def test_agents_that_work_at_once_do_not_all_take_the_same_rest():
    asked = []

    async def slow(request):
        asked.append(request)
        await asyncio.sleep(1)
        yield ModelChunk(text="I am ready.", usage=Usage(input_tokens=300, output_tokens=5), finish_reason="stop")

    guards = [Agent(name=f"guard{number}", model=slow, instructions="x" * 1200) for number in range(4)]
    model = ScriptedModel(spending(100, *(call(guard.name, input="Look.") for guard in guards)))
    end, _, _ = await converse(model, [guard.as_tool() for guard in guards], token_budget=1000)
    assert len(asked) == 2
    assert sorted(record.status for record in end.tools) == ["limit", "limit", "success", "success"]
    assert end.usage.input_tokens + end.usage.output_tokens <= 1000


# -- time ----------------------------------------------------------------------------------------------------


async def test_the_time_of_a_run_ends_it_wherever_it_is_and_leaves_no_call_open():
    @tool(timeout=500)
    async def wait(seconds: float) -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "done"

    model = ScriptedModel([call("wait", seconds=5), call("wait", seconds=400)], "Hello again.")
    end, log, followed = await converse(model, [wait], timeout=30)
    assert (end.type, end.reason) == (EventType.CANCELLED, "timeout")
    assert ends(log) == ["success", "cancelled"]
    assert followed.text == "Hello again."
