"""Agents whose runs fail, retry, are cancelled and left early, and the counters that their events come to.

Run as `python storms.py STORE EVENTS METRICS SEED [KILL]` it is one process's life: it takes up what was left in the
SQLite file STORE, and begins runs of its own. Each event that is published is written to the file EVENTS; with KILL the
process is killed at so many of them, else the metrics are written to METRICS in the end, as Prometheus reads them.
"""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from agentflow import Agent, Settings, SqliteStore, tool  # noqa: E402
from agentflow.errors import ModelConnectionError, ModelError, ToolFailedError  # noqa: E402
from agentflow.events import TERMINAL_TYPES, ToolErrorEvent, encode  # noqa: E402
from agentflow.models.base import ModelChunk  # noqa: E402
from agentflow.observability.metrics import Metrics  # noqa: E402
from agentflow.observability.prometheus import Exposition  # noqa: E402
from agentflow.testing import call  # noqa: E402
from tests.observability.mixed import value, values  # noqa: E402

RUNS = 20  # of one life


class Moody:
    """A model that calls tools, answers, stumbles and breaks, by chance."""

    provider = name = "moody"

    def __init__(self, chance):
        self._chance = chance

    async def stream(self, request):
        chance = self._chance
        for _ in range(chance.randrange(4)):
            yield ModelChunk(text="some words, ")
            await asyncio.sleep(0)
        mood = chance.random()
        if mood < 0.08:
            raise ModelConnectionError("no route", provider="moody")  # it is asked again
        if mood < 0.12:
            raise ModelError("it is broken", provider="moody")
        if mood < 0.6:
            yield ModelChunk(calls=self._calls([spec.name for spec in request.tools]), finish_reason="tool_calls")
        else:
            yield ModelChunk(text="that is all; some of it may have failed.", finish_reason="stop")

    def _calls(self, names):
        names = [*names, "invented"]
        return tuple(
            call(
                name, **({"input": "go"} if name == "helper" else {"number": self._chance.choice([1, 2, "3", "four"])})
            )
            for name in self._chance.choices(names, k=self._chance.randrange(1, 4))
        )


def stormy_agent(chance, **options):
    @tool(idempotent=True)
    async def works(number: int) -> str:
        """Work on this number."""
        await asyncio.sleep(0)
        return f"worked on {number}, {chance.random()}"

    @tool
    def works_in_a_thread(number: int) -> str:
        """Work on this number in a thread."""
        return f"worked on {number}"

    @tool(idempotent=True, retries=1)
    async def stumbles(number: int) -> str:
        """Work on this number, if all is well."""
        if chance.random() < 0.5:
            raise ConnectionError("no route")
        return f"worked on {number}, {chance.random()}"

    @tool
    async def refuses(number: int) -> str:
        """Refuse."""
        raise ToolFailedError(f"not {number}")

    settings = Settings(
        model={"retries": {"base": 0.001, "cap": 0.002}}, chain={"max_iterations": 5}, tools={"corrections": 2}
    )
    helper = Agent(name="helper", description="Helps.", model=Moody(chance), tools=[works, refuses], settings=settings)
    tools = [works, works_in_a_thread, stumbles, refuses, helper.as_tool()]
    return Agent(name="stormy", model=Moody(chance), tools=tools, settings=settings, **options)


async def storm(agent, chance, count=RUNS):
    """Runs of which some are cancelled, and some left early by their only reader."""
    await asyncio.gather(*(_run(agent, chance) for _ in range(count)))


async def _run(agent, chance):
    fate, left = chance.random(), chance.randrange(1, 12)
    chain = agent.stream("go")
    async for _ in chain:
        left -= 1
        if not left and fate < 0.3:
            break
        if not left and fate < 0.6:
            chain.cancel()


def agrees(text, events):
    """Assert that the counters are what a process's events come to; every run has ended that had begun."""
    found = values(text)

    def counter(name, **labels):
        return value(found, f"agentflow_{name}_total", **labels)

    ended = Counter(event.type.value for event in events if event.type in TERMINAL_TYPES)
    assert {outcome: counter("runs", outcome=outcome) for outcome in ended} == ended
    assert counter("runs") == ended.total()
    closings = [event for event in events if event.type in ("tool_complete", "tool_error")]
    again = [event for event in closings if isinstance(event, ToolErrorEvent) and event.will_retry]
    statuses = Counter(getattr(event, "status", "success") for event in closings if event not in again)
    assert {status: counter("tool_calls", status=status) for status in statuses} == statuses
    assert counter("tool_calls") == statuses.total()
    assert counter("tool_retries") == len(again)
    warnings = Counter(event.code for event in events if event.type == "warning")
    assert {code: counter("warnings", code=code) for code in warnings} == warnings
    assert counter("warnings") == warnings.total()
    assert counter("argument_corrections") == warnings["arguments_corrected"]
    answers = list(_answers(events))
    assert value(found, "agentflow_model_duration_seconds_count") == len(answers)
    for kind in ("input", "output"):
        tokens = sum(getattr(event.usage, f"{kind}_tokens") for event in answers)
        assert value(found, f"gen_ai_client_inference_usage_{kind}_tokens_total") == tokens
    assert value(found, "agentflow_runs_in_flight") == 0


def _answers(events):
    """The model calls that were answered, and whose beginning this process has published: which model it was, says it.

    What a process hands in for the log's end as it is killed is published by the next one.
    """
    begun = set()
    for event in events:
        if event.type == "model_start":
            begun.add(event.chain_id)
        elif event.type == "model_complete" and event.chain_id in begun:
            begun.discard(event.chain_id)
            yield event


async def live(path, events, metrics, seed, kill):
    chance, exposition, told = random.Random(seed), Exposition(), 0
    with open(events, "wb", buffering=0) as file:  # noqa: ASYNC230  nothing else is to happen before it is written

        def tell(event):
            nonlocal told
            file.write(encode(event) + b"\n")
            told += 1
            if told == kill:
                os.kill(os.getpid(), signal.SIGKILL)

        store = SqliteStore(path)
        async with stormy_agent(chance, store=store) as agent:
            Metrics(exposition.meter, [agent]).attach()
            agent.bus.attach(tell)
            for chain in await agent.recover():
                await chain
            await storm(agent, chance)
        await store.aclose()
    Path(metrics).write_bytes(exposition.text()[0])  # noqa: ASYNC240  at the end of the process


if __name__ == "__main__":
    STORE, EVENTS, METRICS, SEED, *KILL = sys.argv[1:]
    asyncio.run(live(STORE, EVENTS, METRICS, int(SEED), int(KILL[0]) if KILL else 0))
