"""Runs of every kind, for what is counted of them; and the values of metrics as Prometheus would read them."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from agentflow import Agent, tool
from agentflow.errors import ModelError, ToolFailedError
from agentflow.testing import ScriptedModel, call


@tool
def look(key: str, count: int = 1) -> str:
    """Look."""
    return key * count


@tool
def broken() -> str:
    """Break."""
    raise ToolFailedError("no such thing")


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def flaky_tool():
    failures = [ConnectionError("down")]

    @tool(idempotent=True)
    async def flaky() -> str:
        """Works at the second attempt."""
        if failures:
            raise failures.pop()
        return "up"

    return flaky


@tool
async def forever() -> str:
    """Never ends of itself."""
    await asyncio.Event().wait()


def mixed_agent(times=1, **options):
    """An agent whose runs, asked for in this order by `run_all`, end in every way; so often can they be."""
    helper = Agent(
        name="helper",
        description="Helps.",
        model=ScriptedModel(*[[call("look", key="h")], "helped", [ModelError("gone", provider="scripted")]] * times),
        tools=[look],
    )
    script = (
        [call("look", key="a"), call("broken"), call("helper", input="do it")],
        "answered",
        [call("look", key="a", count="2"), call("flaky"), call("invented_by_the_model", id_of_user="u-1")],
        "answered too",
        [call("pay", amount=5)],
        "paid",
        [call("helper", input="again")],
        "helper is gone",
        "really, it is gone",  # asked once more: nothing it called has worked
        [ModelError("the provider is down", provider="scripted")],
        [call("forever")],
    )

    tools = [look, broken, flaky_tool(), pay, forever, helper.as_tool()]
    return Agent(name="shop", model=ScriptedModel(*script * times), tools=tools, **options)


async def run_all(agent):
    """Their ids, after the last has ended."""
    ids = []
    for text in ("one", "two"):
        chain = agent.start(text)
        await chain
        ids.append(chain.run_id)
    chain = agent.start("three")
    pending = (await chain.reply()).pending
    chain.approve(pending[0].call_id)
    await chain
    ids.append(chain.run_id)
    for text in ("four", "five"):
        chain = agent.start(text)
        await chain
        ids.append(chain.run_id)
    chain = agent.start("six")
    async for event in chain:
        if event.type == "tool_start":
            chain.cancel()
    ids.append(chain.run_id)
    return ids


def values(text):
    """Every sample of a text for Prometheus, by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found, name, **labels):
    """The sum of the samples of this name that have these labels."""
    wanted = set(labels.items())
    return sum(value for (its, has), value in found.items() if its == name and wanted <= has)
