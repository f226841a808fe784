"""Real processes that are killed while twenty runs are in flight, and while they recover; judged from outside.

`pytest -m soak -s tests/chain/test_chaos.py` kills 200 processes on SQLite and 50 on Redis, and says what it has found.
"""

import asyncio
import contextlib
import os
import random
import sqlite3
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest
from redis import Redis

from agentflow.events import TERMINAL_TYPES, EventType, decode, encode
from agentflow.messages import unpaired
from agentflow.state import RunState, kept_messages, reduce
from agentflow.stores.base import SessionKey
from agentflow.stores.redis import RedisStore
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import assert_laws
from tests.builders import of
from tests.chain.conversations import LAST, PACE, SESSIONS, WINDOW_MS, lives
from tests.chain.followers import follower
from tests.redis_servers import PROGRAMS, RedisProcess

MAX_TOLD = 1000  # events that a process tells of, at most, until it is killed
# Words that a window can join, of which none comes sooner than `PACE` after another, and the one that was being read.
BATCH = 1 + int(WINDOW_MS / 1000 / PACE) + 1


def soak(rounds):
    return pytest.param(rounds, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])


# -- the servers and files that survive ----------------------------------------------------------------------


class File:
    """A SQLite file, which nobody has to keep alive."""

    def __init__(self, folder):
        self.where = folder / "store"

    def open(self):
        return SqliteStore(self.where)

    def kill(self, pid, signal):
        os.kill(pid, signal)

    def lapse(self):
        """Leases end now: what otherwise takes as long as a lease."""
        with contextlib.closing(sqlite3.connect(self.where)) as db:
            db.execute("UPDATE runs SET leased_until = 0")
            db.commit()


class Server:
    """A Redis server that writes to its disk before it answers, and dies with every third of its clients."""

    def __init__(self, folder, chance):
        self._process = RedisProcess(folder, PROGRAMS["redis8"], "--appendfsync", "always")
        self._chance = chance
        self._dead = False
        self.where = self._process.url
        self.stop = self._process.kill

    def open(self):
        return RedisStore(self.where, call_timeout=60)

    def kill(self, pid, signal):
        os.kill(pid, signal)
        self._dead = self._chance.random() < 1 / 3
        if self._dead:
            self._process.kill()

    def lapse(self):
        """Leases end now, on a server that is there."""
        if self._dead:
            self._process.start()
        with Redis.from_url(self.where) as redis:
            for run_id in redis.zrange("agentflow:open", 0, -1):
                redis.hset(b"agentflow:run:{%b}" % run_id, "until", 0)


# -- the rounds, and what they leave -------------------------------------------------------------------------


@dataclass
class Left:
    """What is there when all is over, and what was told of it before."""

    told: list = field(default_factory=list)  # (run, seq, type) of each event that a process has told of
    sizes: list = field(default_factory=list)  # of the follower's file, at each kill
    logs: dict = field(default_factory=dict)
    turns: dict = field(default_factory=dict)
    seen: bytes = b""  # what the follower has written
    done: Counter = field(default_factory=Counter)  # how often the tools have done what
    given: dict = field(default_factory=lambda: defaultdict(list))  # the words of each reply, as the model gave them


def chaos(store, folder, rounds, chance):
    """Kill `rounds` processes, each on what the one before has left, and let the last one come to its end."""
    left, seen = Left(), folder / "seen"

    def kill(pid, signal):
        store.kill(pid, signal)
        left.sizes.append(seen.stat().st_size)

    with lives(store.where, folder) as processes, follower(store.where, seen):
        for number in range(rounds):
            left.told += processes.live(number, chance.randrange(MAX_TOLD), kill)
            store.lapse()
        left.told += processes.live(LAST)
    left.seen = seen.read_bytes()
    left.done.update((folder / "done").read_text(encoding="utf-8").splitlines())
    for line in (folder / "given").read_text(encoding="utf-8").splitlines():
        left.given[line.rpartition(":")[0]].append(line)
    asyncio.run(read(store.open(), left))
    return left


async def read(store, left):
    """The log of each run and the turns of each session."""
    before = None
    while page := await store.list_runs(before=before):
        for record in page:
            left.logs[record.run_id] = list(await store.read(record.run_id, 0, 10_000))
        before = page[-1].number
    for session_id in SESSIONS:
        left.turns[session_id] = await store.read_turns(SessionKey(session_id), 0, 10_000)
    await store.aclose()


def judge(left):
    """Each thing that was promised."""
    assert_every_run_ended_once_as_its_laws_say(left.logs.values())
    assert_nothing_that_was_told_of_is_lost(left)
    assert_sessions_keep_what_was_said(left)
    assert_no_tool_ran_again(left)
    assert_the_follower_saw_what_is_there(left)
    lost = lost_words(left)
    crashed = [event for log in left.logs.values() for event in of(log, EventType.ROLLBACK, EventType.TOOL_ERROR)]
    assert len(crashed) > len(left.sizes)  # else it would have proved nothing
    sys.stdout.write(
        f"\n{len(left.sizes)} kills, {len(left.logs)} runs, {sum(map(len, left.logs.values()))} events, "
        f"{len(left.told)} told of, none lost; {sum(left.done.values())} tool runs, {len(crashed)} calls broken off; "
        f"{sum(lost)} words lost of {len(lost)} replies, {max(lost)} of one, where {BATCH} are a batch\n"
    )


def assert_every_run_ended_once_as_its_laws_say(logs):
    for log in logs:
        assert_laws(log)
        assert [event.type for event in log if event.type in TERMINAL_TYPES] == [EventType.FINAL]


def assert_nothing_that_was_told_of_is_lost(left):
    there = {(event.run_id, str(event.seq), event.type.value) for log in left.logs.values() for event in log}
    assert len(left.told) == len(set(left.told))
    assert set(left.told) <= there


def assert_sessions_keep_what_was_said(left):
    kept = {turn.run_id: turn.messages for session in left.turns.values() for turn in session}
    assert kept == {run_id: kept_messages(folded(log)) for run_id, log in left.logs.items()}
    for session in left.turns.values():
        assert unpaired([message for turn in session for message in turn.messages]) is None
        said = [turn.messages[0].text.split() for turn in session]
        assert said == sorted(said, key=lambda words: (int(words[0]), int(words[2])))  # in the order they were said


def folded(log):
    state = RunState(run_id=log[0].run_id)
    for event in log:
        state, _ = reduce(state, event)
    return state.root


def assert_no_tool_ran_again(left):
    """What it has noted is once what was begun once; the laws say that nothing is begun again after its end."""
    begun, ended = Counter(), set()
    for log in left.logs.values():
        calls = {}
        for start in of(log, EventType.TOOL_START):
            calls[start.call_id] = what = f"{start.tool} {start.arguments['what']}"
            begun[what] += 1
        ended |= {calls[end.call_id] for end in of(log, EventType.TOOL_COMPLETE)}
    assert {what for what, times in begun.items() if times > 1 and not what.startswith("again ")} == set()
    assert {what for what, times in left.done.items() if times > begun[what]} == set()
    assert ended <= set(left.done)


def assert_the_follower_saw_what_is_there(left):
    """At each kill it had seen a prefix of what is in the logs now, and mostly of runs that were not at their end."""
    events = [decode(line) for line in left.seen.splitlines(keepends=True) if line.endswith(b"\n")]
    seen = defaultdict(list)
    for event in events:
        seen[event.run_id].append(encode(event))
    for run_id, lines in seen.items():
        assert lines == [encode(event) for event in left.logs[run_id][: len(lines)]]
    attached = 0
    for size in left.sizes:
        last = {event.run_id: event for event in events[: left.seen[:size].count(b"\n")]}
        attached += any(event.type not in TERMINAL_TYPES for event in last.values())
    assert attached > len(left.sizes) / 2


def lost_words(left):
    """How many words were given and are in no log, for each reply that lost any: those of the batch that was open."""
    logged = defaultdict(list)
    for log in left.logs.values():
        for word in (word for event in of(log, EventType.DELTA) for word in event.text.split()):
            logged[word.rpartition(":")[0]].append(word)
    for reply, words in left.given.items():
        assert logged[reply] == words[: len(logged[reply])]
    lost = [len(words) - len(logged[reply]) for reply, words in left.given.items() if words != logged[reply]]
    assert max(lost) <= BATCH
    return lost


# -- the tests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [30, soak(200)])
def test_nothing_is_lost_or_done_twice_on_sqlite_by_processes_that_are_killed(rounds, tmp_path):
    judge(chaos(File(tmp_path), tmp_path, rounds, random.Random(rounds)))


@pytest.mark.parametrize("rounds", [5, soak(50)])
def test_nothing_is_lost_or_done_twice_on_redis_by_processes_that_are_killed(rounds, tmp_path):
    chance = random.Random(rounds)
    server = Server(tmp_path, chance)
    try:
        judge(chaos(server, tmp_path, rounds, chance))
    finally:
        server.stop()
