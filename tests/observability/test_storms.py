"""Counters equal the events, whatever becomes of runs and of their processes."""

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow.events import decode
from agentflow.observability.metrics import Metrics
from agentflow.observability.prometheus import Exposition
from tests.observability import storms
from tests.observability.storms import agrees, storm, stormy_agent


@pytest.mark.parametrize("seed", range(3))
async def test_counters_equal_the_events_of_a_storm(seed):
    chance, exposition, events = random.Random(seed), Exposition(), []
    agent = stormy_agent(chance)
    async with agent:
        attached = Metrics(exposition.meter, [agent]).attach()
        agent.bus.attach(events.append)
        await storm(agent, chance, 60)
        await agent._runtime.owner.drain(5)
        agrees(exposition.text()[0].decode(), events)
        attached.dispose()
    exposition.close()
    assert {event.type.value for event in events} >= {
        "final",
        "failed",
        "cancelled",
        "rollback",
        "tool_error",
        "warning",
    }
    assert any(getattr(event, "will_retry", False) for event in events)
    assert {event.path for event in events} >= {("stormy",), ("stormy", "helper")}


def live(folder, seed, *kill):
    """One process's life; the events that it published, and its metrics, None if it was killed."""
    command = [sys.executable, storms.__file__, folder / "store", folder / "events", folder / "metrics", seed, *kill]
    (folder / "metrics").unlink(missing_ok=True)
    done = subprocess.run([str(word) for word in command], check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr
    events = [decode(line) for line in Path(folder, "events").read_bytes().splitlines()]
    return events, None if kill else Path(folder, "metrics").read_text()


def test_a_process_counts_what_it_publishes_itself_also_of_runs_that_a_killed_one_has_left(tmp_path):
    before, _ = live(tmp_path, 1, 150)
    with contextlib.closing(sqlite3.connect(tmp_path / "store")) as db:
        db.execute("UPDATE runs SET leased_until = 0")  # what otherwise takes as long as a lease
        db.commit()
    events, text = live(tmp_path, 2)
    taken_over = {event.run_id for event in before} & {event.run_id for event in events}
    assert taken_over
    agrees(text, events)
