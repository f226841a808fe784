"""Agents that call agents, and what every log of theirs must be; for the tests of humans, nesting and suspension."""

from agentflow import Agent
from agentflow.events import EventType
from agentflow.state import RunState, reduce
from agentflow.testing import ScriptedModel, assert_laws, call
from tests.builders import of


def caller(below, *, level=0, script=None, **options):
    """An agent whose model calls the one below and says that it is done; asked again, that it is not."""
    turns = script or (
        [call(below.name, input=f"task of {below.name}")],
        f"a{level} is done",
        f"a{level} failed, sorry",
    )
    return Agent(name=f"a{level}", model=ScriptedModel(*turns), tools=[below.as_tool()], **options)


def line(*script, tools, depth=3, leaf=None, **options):
    """The root, `options` its own, of a line of agents; the one at `depth` has `script`, `tools` and `leaf` options.

    `script` is one model, or the turns of one.
    """
    model = script[0] if isinstance(script[0], ScriptedModel) else ScriptedModel(*script)
    own = (leaf or {}) | ({} if depth else options)
    agent = Agent(name=f"a{depth}", model=model, tools=tools, **own)
    for level in reversed(range(depth)):
        agent = caller(agent, level=level, **(options if level == 0 else {}))
    return agent


async def checked(agent, chain, *, ended=True):
    """The log of the run; it is lawful, and whoever folds it from scratch gets what its writer has."""
    log = [event async for event in agent.follow(chain.run_id)] if ended else await so_far(agent, chain)
    assert_laws(log, ended=ended)
    writer = chain._agent_run._writer
    state = RunState(run_id=chain.run_id, limits=writer.state.limits)
    for event in log:
        state, _ = reduce(state, event)
    assert state == writer.state
    assert writer.dropped == 0
    return log


async def so_far(agent, chain):
    """The log of a run that has not ended."""
    return list(await agent._store.read(chain.run_id, 0, 100_000))


def outline(log):
    """The events but `state` and `delta`, each as its depth and type."""
    return [
        (len(event.path) - 1, event.type.value)
        for event in log
        if event.type not in (EventType.STATE, EventType.DELTA, EventType.MODEL_START, EventType.MODEL_COMPLETE)
    ]


def statuses(log):
    """How each call ended, by its tool; the last attempt counts."""
    closing = of(log, EventType.TOOL_COMPLETE, EventType.TOOL_ERROR)
    return {event.tool: getattr(event, "status", "success") for event in closing}
