"""What an agent was given and what is configured, made into what its runs share."""

import pytest

from agentflow import Agent
from agentflow.chain.setup import make_runtime
from agentflow.errors import ConfigError
from agentflow.settings import Settings
from agentflow.stores.in_memory import InMemoryStore
from agentflow.streams import LoopClock
from agentflow.testing import ScriptedModel
from agentflow.tools.registry import tool


@pytest.fixture
def made():
    """Makes the runtime of an agent with these arguments and settings; its threads are ended."""
    runtimes = []

    def make(settings=None, **arguments):
        agent = Agent(model=ScriptedModel(), **arguments)
        runtimes.append(make_runtime(agent._given, Settings(**settings or {})))
        return runtimes[-1]

    yield make
    for runtime in runtimes:
        runtime.pools.close()


def look(key: str) -> str:
    """Look something up."""
    return key


def test_what_nobody_set_is_as_the_settings_say(made):
    runtime, chain = made(), Settings().chain
    limits = runtime.limits
    assert (runtime.timeout, runtime.approval_timeout, runtime.recovery) == (600.0, 86400.0, "resume")
    assert (limits.max_iterations, limits.max_parallel_tools, limits.max_round_calls, limits.max_tool_calls) == (
        chain.max_iterations,
        chain.max_parallel_tools,
        chain.max_round_calls,
        chain.max_tool_calls,
    )
    assert (limits.token_budget, limits.degraded, limits.questions) == (0, "", True)
    assert isinstance(runtime.clock, LoopClock)


def test_the_settings_reach_what_they_are_for(made):
    runtime = made(
        {
            "chain": {"max_iterations": 3, "max_tool_calls": 4, "token_budget": 500, "timeout": 5, "recovery": "fail"},
            "tools": {"validation": "strict", "corrections": 1, "corrections_in_all": 2},
            "flow": {"window_ms": 50, "max_bytes": 1024},
            "limits": {"run_log_bytes": 4096},
            "model": {"temperature": 0.5, "max_tokens": 7, "degraded": "Not now."},
        }
    )
    limits = runtime.limits
    assert (limits.max_iterations, limits.max_tool_calls, limits.token_budget) == (3, 4, 500)
    assert (limits.max_corrections, limits.max_all_corrections, limits.degraded) == (1, 2, "Not now.")
    assert (runtime.timeout, runtime.recovery, runtime.validation) == (5.0, "fail", "strict")
    assert (runtime.window, runtime.max_batch_bytes, runtime.run_log_bytes) == (0.05, 1024, 4096)
    assert runtime.request_options == {"temperature": 0.5, "max_tokens": 7}


def test_the_agents_own_arguments_beat_the_settings(made):
    runtime = made(
        {"chain": {"max_iterations": 3, "timeout": 5}, "model": {"temperature": 0.5, "degraded": "Not now."}},
        max_iterations=9,
        timeout=60.0,
        approval_timeout=30.0,
        token_budget=10,
        temperature=0.0,
        degraded="",
    )
    assert (runtime.limits.max_iterations, runtime.limits.token_budget, runtime.limits.degraded) == (9, 10, "")
    assert (runtime.timeout, runtime.approval_timeout) == (60.0, 30.0)
    assert runtime.request_options["temperature"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"max_iterations": 0}, "max_iterations is 0"),
        ({"max_tool_calls": -1}, "max_tool_calls is -1"),
        ({"timeout": -5.0}, "timeout is -5.0"),
        ({"approval_timeout": 0}, "approval_timeout is 0"),
    ],
)
def test_a_bound_out_of_range_is_told_by_its_name(made, arguments, told):
    with pytest.raises(ConfigError, match=told):
        made(**arguments)


def test_a_tool_of_a_pool_that_does_not_exist_is_told_before_any_call(made):
    @tool(pool="slow")
    def crawl(key: str) -> str:
        """Take long."""
        return key

    with pytest.raises(ConfigError, match="'slow'"):
        made(tools=[crawl])
    assert made({"pools": {"slow": {"size": 1}}}, tools=[crawl]).pools.get("slow")


def test_a_form_of_the_answer_is_asked_for_and_then_no_reply_is_a_question(made):
    runtime = made(output=int)
    assert runtime.request_options["response_format"] == runtime.output.schema
    assert not runtime.limits.questions


def test_what_was_given_is_lent_as_it_is(made):
    store, clock = InMemoryStore(), LoopClock()
    runtime = made(name="shop", instructions="Be brief.", store=store, clock=clock, transforms=[lambda event: event])
    assert (runtime.name, runtime.instructions, len(runtime.transforms)) == ("shop", "Be brief.", 1)
    assert (runtime.store, runtime.clock) == (store, clock)


def test_tools_are_described_once_until_there_is_another():
    def find(key: str) -> str:
        """Find something."""
        return key

    agent = Agent(model=ScriptedModel(), tools=[look])
    runtime = make_runtime(agent._given, Settings())
    specs, tokens = runtime.describe_tools()
    assert ([spec.name for spec in specs], tokens > 0) == (["look"], True)
    assert runtime.describe_tools()[0] is specs
    agent.tools.add(find)
    more, more_tokens = runtime.describe_tools()
    assert [spec.name for spec in more] == ["look", "find"]
    assert more_tokens > tokens
    runtime.pools.close()
