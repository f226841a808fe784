"""Real processes that are killed while they talk, and while they recover; what they left is judged from outside."""

import asyncio
import contextlib
import random
import sqlite3
from collections import Counter
from itertools import islice

import pytest

from agentflow.events import EventType
from agentflow.messages import unpaired
from agentflow.state import RunState, kept_messages, reduce
from agentflow.stores.base import SessionKey
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import assert_laws
from tests.builders import of
from tests.chain.conversations import SESSIONS, process

ROUNDS = 4


def told_before_death(count, *arguments):
    """What a process tells of until it is killed, after `count` lines or at its end."""
    with process(*arguments) as child:
        lines = list(islice(child.stdout, count))
        child.kill()
        lines += list(child.stdout)  # it went on a little, since nobody can stop it between two lines
    return [tuple(line.split()) for line in lines if line.endswith("\n")]


def let_leases_lapse(path):
    """What otherwise takes as long as a lease."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE runs SET leased_until = 0")
        db.commit()


async def what_is_there(path):
    """The log of each run and the turns of each session."""
    store = SqliteStore(path)
    logs, turns, before = {}, {}, None
    while page := await store.list_runs(before=before):
        for record in page:
            logs[record.run_id] = list(await store.read(record.run_id, 0, 10_000))
        before = page[-1].number
    for number in range(SESSIONS):
        turns[f"s{number}"] = await store.read_turns(SessionKey(f"s{number}"), 0, 10_000)
    await store.aclose()
    return logs, turns


def final_state(log):
    state = RunState(run_id=log[0].run_id)
    for event in log:
        state, _ = reduce(state, event)
    return state.root


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_or_done_twice_by_processes_that_are_killed(seed, tmp_path):
    chance = random.Random(seed)
    path, ledger = tmp_path / "store", tmp_path / "ledger"
    told = []
    for number in range(ROUNDS):
        told += told_before_death(chance.randrange(1, 300), path, ledger, f"{number}")
        let_leases_lapse(path)
    told += told_before_death(None, path, ledger)  # this one comes to its end

    logs, turns = asyncio.run(what_is_there(path))
    for log in logs.values():
        assert_laws(log)
        assert log[-1].type is EventType.FINAL
    accepted = {(event.run_id, str(event.seq), event.type.value) for log in logs.values() for event in log}
    assert len(told) == len(set(told))
    assert set(told) <= accepted  # nothing that anybody was told of is lost

    kept = {turn.run_id: turn for session in turns.values() for turn in session}
    assert {run_id: turn.messages for run_id, turn in kept.items()} == {
        run_id: kept_messages(final_state(log)) for run_id, log in logs.items()
    }
    for session in turns.values():
        assert unpaired([message for turn in session for message in turn.messages]) is None
        said = [turn.messages[0].text.split() for turn in session]
        assert said == sorted(said, key=lambda words: (int(words[0]), int(words[2])))  # in the order they were said

    done = Counter(ledger.read_text(encoding="utf-8").splitlines())
    assert {what.split()[0] for what, times in done.items() if times > 1} <= {"again"}
    starts = {(event.call_id, event.attempt): event for log in logs.values() for event in of(log, EventType.TOOL_START)}
    for end in (end for log in logs.values() for end in of(log, EventType.TOOL_COMPLETE)):
        start = starts[end.call_id, end.attempt]
        assert done[f"{start.tool} {start.arguments['what']}"] >= 1
    crashed = [event for log in logs.values() for event in of(log, EventType.ROLLBACK, EventType.TOOL_ERROR)]
    assert crashed  # else it would have proved nothing
