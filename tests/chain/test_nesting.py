"""Agents as tools: how deep, whose limits, models, transforms and tools hold, and what a child's end means."""

import asyncio

import msgspec
import pytest

from agentflow import Agent, ModelChunk, tool
from agentflow.chain.nesting import MAX_DEPTH
from agentflow.errors import ConfigError, ModelRateLimitError, ModelStatusError
from agentflow.events import DeltaEvent, EventType, InputEvent
from agentflow.messages import Usage
from agentflow.models.base import CallRequest, estimate_tokens
from agentflow.testing import ScriptedModel, call
from tests.builders import of, turns
from tests.chain.families import caller, checked, line, statuses

pytestmark = pytest.mark.virtual_time


async def look(key: str) -> str:
    """Look something up."""
    return f"value of {key}"


async def whole(agent, text="hello", **fields):
    """The log of one run, which is lawful, and its last event."""
    chain = agent.start(text, **fields)
    end = await chain
    return await checked(agent, chain), end


def closing(log, name):
    """The event that closed the call of that tool."""
    (event,) = [event for event in of(log, EventType.TOOL_COMPLETE, EventType.TOOL_ERROR) if event.tool == name]
    return event


# -- depth ---------------------------------------------------------------------------------------------------


async def test_agents_call_each_other_five_deep():
    async with line([call("look", key="x")], "found", tools=[look], depth=MAX_DEPTH) as agent:
        log, end = await whole(agent)
        assert MAX_DEPTH == 5
        assert max(len(event.path) for event in log) == 6
        assert (end.text, set(statuses(log).values())) == ("a0 is done", {"success"})
        assert [event.path for event in of(log, EventType.INPUT)] == [
            tuple(f"a{level}" for level in range(depth + 1)) for depth in range(6)
        ]


async def test_the_sixth_below_the_root_is_refused():
    async with line("never asked", tools=[], depth=MAX_DEPTH + 1) as agent:
        log, end = await whole(agent)
        refused = closing(log, "a6")
        assert (refused.status, refused.error.kind) == ("limit", "limit")
        assert "at most 5 deep" in refused.result
        assert max(len(event.path) for event in log) == 6
        assert end.text == "a0 failed, sorry"


async def test_agents_that_call_each_other_in_a_circle_come_to_the_bound_and_close():
    first = Agent(name="first", model=ScriptedModel(*[[call("second", input="you")]] * 3, *["I failed, sorry"] * 3))
    second = Agent(
        name="second", model=ScriptedModel(*[[call("first", input="no, you")]] * 3, *["I failed, sorry"] * 3)
    )
    first.tools.add(second.as_tool())
    second.tools.add(first.as_tool())
    async with first:
        log, end = await whole(first)
        assert max(len(event.path) for event in log) == 6
        assert [event.status for event in of(log, EventType.TOOL_ERROR)] == ["limit"] + ["error"] * 5
        assert end.text == "I failed, sorry"


# -- what a child sees and may -------------------------------------------------------------------------------


async def test_a_child_sees_its_task_and_its_instructions_and_nothing_else():
    model = ScriptedModel("found")
    child = Agent(name="child", model=model, instructions="Be brief.", tools=[look])
    script = ([call("child", input="find it")], "done")
    async with Agent(model=ScriptedModel("first", *script), instructions="Delegate.", tools=[child.as_tool()]) as agent:
        await agent.chat("a secret", session_id="s")
        log, _ = await whole(agent, session_id="s")
        (request,) = model.requests
        assert [(message.role, message.text) for message in request.messages] == [
            ("system", "Be brief."),
            ("user", "find it"),
        ]
        assert [spec.name for spec in request.tools] == ["look"]
        assert closing(log, "child").result == "[success]\nfound"


async def test_a_child_has_no_tools_but_its_own():
    child = Agent(name="child", model=ScriptedModel([call("look", key="x")], "I could not, sorry"))
    async with Agent(
        model=ScriptedModel([call("child", input="x")], "It failed"), tools=[child.as_tool(), look]
    ) as agent:
        log, _ = await whole(agent)
        assert closing(log, "look").status == "unknown_tool"


async def test_a_session_keeps_what_the_root_said_and_nothing_of_its_children():
    child = Agent(name="child", model=ScriptedModel([call("look", key="x")], "found"), tools=[look])
    model = ScriptedModel([call("child", input="x")], "done", "again")
    async with Agent(model=model, tools=[child.as_tool()]) as agent:
        await whole(agent, session_id="s")
        await whole(agent, session_id="s")
        history = model.requests[-1].messages
        assert [message.role for message in history] == ["user", "assistant", "tool", "assistant", "user"]
        assert history[2].text == "[success]\nfound"


@pytest.mark.parametrize(
    "arguments", ["{}", '{"input": null}', '{"input": {"a": 1}}', '{"task": "x", "more": 1}', "nonsense"]
)
async def test_an_agent_is_not_called_with_what_is_no_task(arguments):
    child = Agent(name="child", model=ScriptedModel())
    calls = [CallRequest(name="child", arguments=arguments)]
    async with Agent(model=ScriptedModel(calls, "It failed, sorry"), tools=[child.as_tool()]) as agent:
        log, _ = await whole(agent)
        assert closing(log, "child").status == "invalid_arguments"
        assert len(of(log, EventType.INPUT)) == 1


async def test_call_ids_that_several_models_give_are_told_apart():
    async with line([call("look", id="call_1", key="x")], "found", tools=[look], depth=1) as below:
        calls = [call("a0", id="call_1", input="x"), call("look", id="call_1", key="y")]
        async with Agent(name="root", model=ScriptedModel(calls, "done"), tools=[below.as_tool(), look]) as agent:
            log, _ = await whole(agent)
            ids = [event.call_id for event in of(log, EventType.TOOL_START)]
            assert len(ids) == len(set(ids)) == 4


async def test_what_two_parents_call_is_one_agent():
    model = ScriptedModel("for one", "for the other", "again")
    child = Agent(name="child", model=model)
    one, other = (caller(child, level=level) for level in (1, 2))
    calls = [call("a1", input="x"), call("a2", input="y")]
    async with Agent(name="root", model=ScriptedModel(calls, "done"), tools=[one.as_tool(), other.as_tool()]) as agent:
        log, _ = await whole(agent)
        paths = sorted(event.path for event in of(log, EventType.INPUT))
        assert paths == [("root",), ("root", "a1"), ("root", "a1", "child"), ("root", "a2"), ("root", "a2", "child")]
        assert statuses(log) == {"child": "success", "a1": "success", "a2": "success"}


# -- life ----------------------------------------------------------------------------------------------------


async def test_nothing_is_left_of_agents_at_any_depth():
    """Threads of their pools among others, which is looked at after each test."""

    def save(key: str) -> str:
        return f"saved {key}"

    async with line([call("save", key="x")], "done", tools=[save], depth=4) as agent:
        await whole(agent)


async def test_nothing_is_left_of_agents_that_call_each_other_in_a_circle():
    def save(key: str) -> str:
        return f"saved {key}"

    first = Agent(name="first", model=ScriptedModel([call("second", input="you")], "done"))
    second = Agent(name="second", model=ScriptedModel([call("save", key="x")], "done"), tools=[first.as_tool(), save])
    first.tools.add(second.as_tool())
    async with caller(first) as agent:
        _, end = await whole(agent)
        assert end.text == "a0 is done"


async def test_a_child_is_closed_with_the_last_agent_that_has_it():
    child = Agent(name="child", model=ScriptedModel("found", "found"))
    first, second = (caller(child, level=level) for level in (1, 2))
    await whole(first)
    await whole(second)
    runtime = child.lend()[0]
    await first.aclose()
    assert child.lend()[0] is runtime
    await second.aclose()
    assert child.lend()[0] is not runtime  # it has let go of it, and may be used again
    await child.aclose()


async def test_a_child_that_was_closed_by_itself_fails_its_call():
    child = Agent(name="child", model=ScriptedModel("never"))
    async with caller(child) as agent:
        chain = agent.stream("hello")
        await child.aclose()
        await chain
        log = await checked(agent, chain)
        assert "agent 'child' is closed" in closing(log, "child").error.message


async def test_a_child_without_its_key_is_told_before_anything_begins(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    child = Agent(name="child", model="openai/gpt-5-mini")
    async with caller(caller(child, level=1)) as agent:
        with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
            agent.stream("hello")


# -- how a child ends ----------------------------------------------------------------------------------------

FAILURES = {
    "status": ModelStatusError("bad request", status=400),
    "rate_limit": ModelRateLimitError("slow down", retry_after=9999.0),
    "model": ValueError("a bug"),
}


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("kind", FAILURES)
async def test_a_child_whose_model_fails_fails_its_call_with_that_kind(kind, depth):
    async with line([FAILURES[kind]], tools=[], depth=depth) as agent:
        log, end = await whole(agent)
        failed = closing(log, f"a{depth}")
        assert (failed.status, failed.error.kind) == ("error", kind)
        assert failed.result.startswith(f"[error: {kind}]\n")
        assert end.text == "a0 failed, sorry"


async def test_what_a_failed_childs_model_has_used_counts():
    failing = [
        ModelChunk(text="half", usage=Usage(input_tokens=40, output_tokens=2)),
        ModelStatusError("no", status=400),
    ]
    async with line(failing, tools=[], depth=1) as agent:
        log, end = await whole(agent)
        told = sum((event.usage for event in of(log, EventType.MODEL_COMPLETE)), Usage())
        assert end.usage.input_tokens == told.input_tokens + 40


async def test_a_childs_degraded_answer_is_told_as_one():
    leaf = {"degraded": "The archive is closed."}
    async with line([ModelStatusError("no", status=400)], tools=[], depth=1, leaf=leaf) as agent:
        log, _ = await whole(agent)
        degraded = closing(log, "a1")
        assert (degraded.status, degraded.result) == ("degraded", "[degraded]\nThe archive is closed.")


async def test_a_child_ends_at_its_own_bound_of_rounds():
    script = [[call("look", key=str(number))] for number in range(5)]
    async with line(*script, tools=[look], depth=1, leaf={"max_iterations": 3}) as agent:
        log, _ = await whole(agent)
        limited = closing(log, "a1")
        assert (limited.status, "limit of 3 model rounds" in limited.result) == ("limit", True)
        assert statuses(log)["look"] == "limit"


async def test_a_childs_answer_that_was_cut_is_an_answer_all_the_same():
    async with line(["half an ans", ModelChunk(finish_reason="length")], tools=[], depth=1) as agent:
        log, _ = await whole(agent)
        assert closing(log, "a1").result == "[success]\nhalf an ans"


async def test_a_childs_answer_has_the_form_that_it_asks_for():
    async with line("no JSON", '{"a": 1}', tools=[], depth=2, leaf={"output": dict[str, int]}) as agent:
        log, _ = await whole(agent)
        assert closing(log, "a2").result == '[success]\n{"a": 1}'
        assert [(event.code, event.path[-1]) for event in of(log, EventType.WARNING)] == [("output_invalid", "a2")]


async def test_a_child_that_does_not_come_to_the_form_fails_its_call():
    async with line("no JSON", "none again", tools=[], depth=2, leaf={"output": dict[str, int]}) as agent:
        log, end = await whole(agent)
        assert closing(log, "a2").error.kind == "output"
        assert end.type is EventType.FINAL


async def test_a_child_that_refuses_the_form_fails_its_call():
    refusing = [ModelChunk(refusal="I will not", finish_reason="stop")]
    async with line(refusing, tools=[], depth=1, leaf={"output": int}) as agent:
        log, _ = await whole(agent)
        assert (closing(log, "a1").error.kind, "I will not" in closing(log, "a1").result) == ("output", True)


async def test_a_huge_answer_of_a_child_is_cut_for_its_parent():
    async with line("x" * 100_000, tools=[], depth=1) as agent:
        log, _ = await whole(agent)
        complete = closing(log, "a1")
        assert (complete.truncated, len(complete.result.encode()) <= 64 * 1024) == (True, True)


async def test_what_the_model_of_a_child_was_saying_counts_when_the_run_is_cancelled():
    async def model(request):
        yield ModelChunk(text="half an answer")
        await asyncio.Event().wait()

    async with caller(caller(Agent(name="leaf", model=model), level=1)) as agent:
        chain = agent.start("hello")
        await turns(50)
        chain.cancel()
        end = await chain
        log = await checked(agent, chain)
        told = sum((event.usage for event in of(log, EventType.MODEL_COMPLETE)), Usage())
        broken = of(log, EventType.MODEL_START)[-1].input_tokens_estimate
        assert end.usage.input_tokens == told.input_tokens + broken
        assert end.usage.output_tokens == told.output_tokens + estimate_tokens("half an answer")


# -- transforms ----------------------------------------------------------------------------------------------


def marking(mark):
    def transform(event):
        if isinstance(event, DeltaEvent | InputEvent):
            return msgspec.structs.replace(event, text=event.text + mark)
        return event

    return transform


async def test_a_childs_own_transforms_come_first_then_those_of_its_callers():
    model = ScriptedModel("found")
    leaf = {"transforms": [marking("<leaf>")]}
    async with line(model, tools=[], depth=2, leaf=leaf, transforms=[marking("<root>")]) as agent:
        log, end = await whole(agent)
        assert [event.text for event in of(log, EventType.INPUT)] == [
            "hello<root>",
            "task of a1<root>",
            "task of a2<leaf><root>",
        ]
        assert model.requests[0].messages[-1].text == "task of a2<leaf><root>"
        assert closing(log, "a2").result == "[success]\nfound<leaf><root>"
        assert end.text.replace("<root>", "") == "a0 is done"


async def test_what_the_root_redacts_no_child_shows():
    def redact(event):
        for name in ("text", "result"):
            if "secret" in (getattr(event, name, None) or ""):
                return msgspec.structs.replace(event, **{name: getattr(event, name).replace("secret", "***")})
        return event

    async def tell() -> str:
        return "a secret"

    async with line([call("tell")], "the secret is a secret", tools=[tell], depth=3, transforms=[redact]) as agent:
        log, _ = await whole(agent)
        shown = [event for event in log if event.type not in (EventType.TOOL_START, EventType.MODEL_COMPLETE)]
        assert "secret" not in str(shown)


# -- budgets -------------------------------------------------------------------------------------------------


async def test_the_calls_of_all_children_count_for_one_limit():
    made = []

    async def count(number: int) -> str:
        made.append(number)
        await asyncio.sleep(0.1)
        return str(number)

    def child(name):
        script = [[call("count", number=number) for number in range(3)]] * 4
        return Agent(name=name, model=ScriptedModel(*script, "I stopped, sorry"), tools=[tool(idempotent=True)(count)])

    children = [child(f"c{number}") for number in range(4)]
    calls = [call(agent.name, input="go") for agent in children]
    tools = [agent.as_tool() for agent in children]
    async with Agent(model=ScriptedModel(calls, "It failed"), tools=tools, max_tool_calls=10) as agent:
        log, end = await whole(agent)
        assert len(made) == 6  # the children's own four calls count too
        assert {event.status for event in of(log, EventType.TOOL_ERROR)} == {"limit"}
        assert end.finish_reason in ("stop", "budget")


async def test_the_tokens_of_all_children_count_for_one_budget():
    answered = Usage(input_tokens=50, output_tokens=50)

    def child(name):
        async def model(request):
            await asyncio.sleep(0.1)
            number = sum(message.role == "assistant" for message in request.messages)
            yield ModelChunk(calls=(call("look", key=str(number)),), finish_reason="tool_calls", usage=answered)

        return Agent(name=name, model=model, tools=[look])

    children = [child(f"c{number}") for number in range(4)]
    calls = [call(agent.name, input="go") for agent in children]
    tools = [agent.as_tool() for agent in children]
    async with Agent(model=ScriptedModel(calls, "It failed"), tools=tools, token_budget=1500) as agent:
        log, end = await whole(agent)
        used = end.usage.input_tokens + end.usage.output_tokens
        assert 1200 < used <= 1500 + 50 * 4  # what one call of each writes is not known before
        assert {event.status for event in of(log, EventType.TOOL_ERROR)} == {"limit"}
        assert all("budget of 1500 tokens" in event.result for event in of(log, EventType.TOOL_ERROR))


async def test_children_that_begin_at_once_do_not_take_the_same_rest_of_the_budget():
    def child(name):
        async def model(request):
            await asyncio.sleep(1.0)
            yield ModelChunk(text="found", usage=Usage(input_tokens=1000, output_tokens=1))

        return Agent(name=name, model=model, instructions="word " * 800)

    children = [child(f"c{number}") for number in range(5)]
    calls = [call(agent.name, input="go") for agent in children]
    tools = [agent.as_tool() for agent in children]
    async with Agent(model=ScriptedModel(calls, "It failed"), tools=tools, token_budget=4000) as agent:
        log, end = await whole(agent)
        assert sorted(statuses(log).values()) == ["limit"] * 2 + ["success"] * 3
        assert end.usage.input_tokens + end.usage.output_tokens <= 4000


async def test_a_child_that_was_given_up_reserves_nothing():
    """Else the root could not use its budget to the last token."""
    failing = [ModelStatusError("no", status=400)]
    async with line(failing, tools=[], depth=1) as agent:
        log, _ = await whole(agent)
        *_, last = of(log, EventType.MODEL_START)
        used = [event.usage for event in of(log, EventType.MODEL_COMPLETE)][:-1]
        needed = last.input_tokens_estimate + sum(usage.input_tokens + usage.output_tokens for usage in used)
    for budget, reason in ((needed, "stop"), (needed - 1, "budget")):
        async with line(failing, tools=[], depth=1, token_budget=budget) as agent:
            _, end = await whole(agent)
            assert end.finish_reason == reason
