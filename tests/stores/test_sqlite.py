"""The SQLite store keeps the contract on real files, between real processes, and when one of them is killed."""

import asyncio
import json
import sqlite3

import pytest

from agentflow import Agent
from agentflow.errors import LeaseLostError, StoreError
from agentflow.event_log import follow
from agentflow.stores import sqlite, sqlite_file, sqlite_watch
from agentflow.stores.base import OutcomeKey, SessionKey, cancel_letter
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import ScriptedModel, assert_laws, call, store_suite
from agentflow.testing.store_probe import KEY, PATIENCE, clients, end, fill, in_line, log, turn, until
from tests.builders import turns
from tests.stores.children import started


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.mark.parametrize("check", store_suite.CHECKS, ids=store_suite.name_of)
async def test_it_keeps_the_contract(check, path):
    await check(lambda: SqliteStore(path))


# -- other processes -------------------------------------------------------------------------------------


async def test_eight_processes_open_20_fresh_files_at_once(path):
    names = [f"p{number}" for number in range(8)]
    with started(path, "open", *names) as children:
        assert [child.stdout.readline() for child in children] == ["opened\n"] * 8
    async with clients(lambda: SqliteStore(f"{path}-19"), 1) as (store,):
        assert [await store.last(name) for name in names] == [1] * 8


async def test_four_processes_share_a_session_and_no_message_is_lost(path):
    with started(path, "converse", *"abcd") as children:
        assert [child.stdout.readline() for child in children] == ["done\n"] * 4
    async with clients(lambda: SqliteStore(path), 1) as (store,):
        found = await store.read_turns(KEY, 0, 1000)
        assert [kept.messages[0].text for kept in found] == [str(number) for number in range(100)]
        for name in "abcd":
            own = [kept.run_id for kept in found if kept.run_id.startswith(name)]
            assert own == [f"{name}-{number}" for number in range(25)]


async def test_what_was_acknowledged_is_there_after_a_kill_and_every_log_is_whole(path):
    acknowledged = {}
    for round_ in range(5):
        with started(path, "append", f"round{round_}") as (child,):
            for _ in range(40 * round_ + 7):
                run_id, seq = child.stdout.readline().split()
                acknowledged[run_id] = int(seq)
            child.kill()
            for line in child.stdout:
                if line.endswith("\n"):
                    acknowledged[line.split()[0]] = int(line.split()[1])
    async with clients(lambda: SqliteStore(path), 1) as (store,):
        assert len(acknowledged) > 20
        for run_id, seq in acknowledged.items():
            events = await store.read(run_id, 0, 100_000)
            assert [event.seq for event in events] == [*range(1, len(events) + 1)]
            assert len(events) >= seq


async def test_who_takes_over_from_a_killed_process_finds_its_run_and_goes_on(path):
    async with clients(lambda: SqliteStore(path), 1) as (store,):
        await store.open_session(SessionKey("other"), "mine")
        with started(path, "hold", "victim") as (child,):
            assert child.stdout.readline() == "holds\n"
        await until(lambda: store.acquire_lease("victim", "heir", 60.0), "the lease lapses")
        token = await store.acquire_lease("victim", "heir", 60.0)
        (record,) = [run for run in await store.list_runs(open_only=True) if run.run_id == "victim"]
        assert (record.session, record.last, record.ended) == (KEY, 1, False)
        with pytest.raises(LeaseLostError):
            await store.append("victim", log("victim", 2), token=token - 1)
        await store.open_session(KEY, "victim")
        await store.close_session(KEY, "victim", turn("victim"), [end("victim", 2)])
        await store.append("victim", [end("victim", 2)], token=token)
        await store.open_session(KEY, "next")


async def test_a_process_that_died_in_a_line_keeps_nobody_out(path, monkeypatch):
    monkeypatch.setattr(sqlite.sqlite_sessions, "IN_LINE", 0.3)
    monkeypatch.setattr(sqlite, "RENEWAL", 0.05)
    async with clients(lambda: SqliteStore(path), 1) as (store,):
        await store.open_session(SessionKey("other"), "mine")
        with started(path, "hold", "victim") as (child,):
            assert child.stdout.readline() == "holds\n"
        await store.close_session(SessionKey("other"), "mine", None)
        assert (await store.open_session(SessionKey("other"), "next")).version == 0
        assert await store.find_run("victim waits") is None


async def test_a_follower_in_another_process_sees_what_is_written_here(path):
    async with clients(lambda: SqliteStore(path), 1) as (store,):
        await store.append("r", log("r"))
        with started(path, "follow", "r") as (child,):
            assert child.stdout.readline() == "1\n"
            await store.append("r", log("r", 2, 5))
            assert [child.stdout.readline() for _ in range(5)] == [f"{seq}\n" for seq in range(2, 7)]
            await store.append("r", [end("r", 7)])
            assert [child.stdout.readline() for _ in range(2)] == ["7\n", "done\n"]


async def test_a_request_to_end_reaches_another_process(path):
    async with clients(lambda: SqliteStore(path), 1) as (store,):
        await store.append("r", log("r"))
        with started(path, "hear", "r") as (child,):
            assert child.stdout.readline() == "listens\n"
            await store.send_letter("r", cancel_letter("superseded"))
            assert child.stdout.readline() == "superseded\n"


# -- faults ----------------------------------------------------------------------------------------------


class Faulty(sqlite3.Connection):
    """Its n-th statement, over all connections, fails."""

    left = 10**9

    def execute(self, *args):
        Faulty.left -= 1
        if Faulty.left == 0:
            raise sqlite3.OperationalError("the disk is gone")
        return super().execute(*args)


async def one_turn(store, attempts):
    """A run from its session to its end, every step of it tried twice; whether none has failed."""
    for step in (
        lambda: store.open_session(KEY, "r"),
        lambda: store.append("r", log("r", 1, 2)),
        lambda: store.close_session(KEY, "r", turn("r"), [end("r", 3)]),
        lambda: store.append("r", [end("r", 3)]),
        lambda: store.read("r", 0, 10),
    ):
        try:
            await step()
        except StoreError as error:
            assert "the disk is gone" in str(error)
            attempts.append(error)
            await step()


async def test_whichever_statement_fails_its_call_can_be_made_again(path, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite_file.sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Faulty))
    number, failed = 0, True
    while failed:
        number += 1
        failed = []
        async with clients(lambda name=f"{path}-{number}": SqliteStore(name), 1) as (store,):
            Faulty.left = number
            await one_turn(store, failed)
            Faulty.left = 10**9
            assert [event.seq for event in await store.read("r", 0, 10)] == [1, 2, 3]
            assert [kept.run_id for kept in await store.read_turns(KEY, 0, 10)] == ["r"]
            record = await store.find_run("r")
            assert (record.ended, record.closing) == (True, ())
    assert number > 50


async def test_one_call_that_cannot_be_done_does_not_hinder_those_written_with_it(path):
    async with clients(lambda: SqliteStore(path), 1) as (store,):
        calls = [store.append(f"r{number}", log(f"r{number}", 2 if number == 3 else 1)) for number in range(6)]
        unreadable = store.append("lone \ud800", log("r"))
        results = await asyncio.gather(*calls, unreadable, return_exceptions=True)
        assert [type(result) for result in results] == [type(None)] * 3 + [StoreError] + [type(None)] * 2 + [StoreError]
        assert [await store.last(f"r{number}") for number in range(6)] == [1, 1, 1, None, 1, 1]


# -- age -------------------------------------------------------------------------------------------------


async def test_what_is_finished_goes_a_ttl_after_its_last_use_and_what_is_not_stays(path, monkeypatch):
    monkeypatch.setattr(sqlite, "EXPIRY", 0.0)
    now = 1000.0
    async with clients(lambda: SqliteStore(path, ttl=100.0, wall=lambda: now), 1) as (store,):
        for run_id in ("ended", "open"):
            await store.append(run_id, log(run_id))
        await store.append("ended", [end("ended", 2)])
        await fill(store, KEY, "a")
        await store.open_session(SessionKey("held"), "b")
        await store.claim_outcome(OutcomeKey("pay", "k"), "c")
        for now, there in ((1100.0, True), (1101.0, False)):
            await store.append(f"at {now}", log("x"))
            assert await store.last("open") == 1
            found = await store.last("ended"), await store.find_session(KEY)
            assert [value is not None for value in found] == [there, there]
        assert (await store.find_session(SessionKey("held"))).active_run == "b"
        assert await store.claim_outcome(OutcomeKey("pay", "k"), "d") is None


# -- waiting ---------------------------------------------------------------------------------------------


async def test_what_this_process_does_wakes_its_own_waiters_without_a_look(path, monkeypatch):
    monkeypatch.setattr(sqlite_watch, "POLL", 10**6)
    monkeypatch.setattr(sqlite, "RENEWAL", 10**6)
    async with clients(lambda: SqliteStore(path), 1) as (store,):
        await store.append("r", log("r"))
        await store.open_session(KEY, "r")
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            group.create_task(store.wait("r", 1))
            heard = asyncio.Event()
            leave = store.listen("r", heard.set)
            group.create_task(store.open_session(KEY, "waits"))
            await in_line(store, "waits")
            await turns()
            await store.append("r", log("r", 2))
            await store.send_letter("r", cancel_letter("user"))
            await heard.wait()
            leave()
            await store.close_session(KEY, "r", None)


async def test_who_waits_when_the_store_is_closed_is_told(path):
    store = SqliteStore(path)
    await store.append("r", log("r"))
    await store.open_session(KEY, "r")

    async def close():
        await in_line(store, "waits")
        await store.aclose()
        await store.aclose()

    reading, opening = anext(follow(store, "r", after=1)), store.open_session(KEY, "waits")
    done = await asyncio.gather(reading, opening, close(), return_exceptions=True)
    assert ["is closed" in str(error) for error in done] == [True, True, False]
    with pytest.raises(StoreError, match="is closed"):
        await store.last("r")


@pytest.mark.parametrize("moment", range(12))
async def test_who_leaves_while_the_session_is_given_to_him_gives_it_back_at_once(path, moment, monkeypatch):
    monkeypatch.setattr(sqlite.sqlite_sessions, "IN_LINE", 10**6)  # a place that is not given back stays
    async with clients(lambda: SqliteStore(path), 1) as (store,):
        await fill(store, KEY, "before")
        async with asyncio.TaskGroup() as group:
            leaver = group.create_task(store.open_session(KEY, "leaver"))
            for _ in range(moment):
                await asyncio.sleep(0)
            leaver.cancel()
        if not leaver.cancelled():
            await store.close_session(KEY, "leaver", None)
        assert (await store.open_session(KEY, "next", busy="reject")).version == 1
        assert await store.find_run("leaver") is None


async def test_who_leaves_the_line_leaves_it_at_once(path, monkeypatch):
    monkeypatch.setattr(sqlite.sqlite_sessions, "IN_LINE", 10**6)
    async with clients(lambda: SqliteStore(path), 1) as (store,):
        await store.open_session(KEY, "holder")
        async with asyncio.TaskGroup() as group:
            leaver = group.create_task(store.open_session(KEY, "leaver"))
            await in_line(store, "leaver")
            leaver.cancel()
        await store.close_session(KEY, "holder", None)
        assert (await store.open_session(KEY, "next", busy="reject")).version == 0


# -- whole runs ------------------------------------------------------------------------------------------


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_an_agent_keeps_its_conversation_in_the_file(path):
    async with clients(lambda: SqliteStore(path)) as (store, other):
        model = ScriptedModel([call("add", a=1, b=2)], "3", "still 3")
        async with Agent(model=model, tools=[add], store=store) as agent:
            first = await agent.chat("1 + 2?", session_id="s", user_id="u")
            second = await agent.chat("And now?", session_id="s", user_id="u")
        assert (first.text, second.text) == ("3", "still 3")
        for reply in (first, second):
            assert_laws([event async for event in follow(other, reply.run_id)])
        session = await other.open_session(KEY, "x")
        assert [kept.run_id for kept in session.turns] == [first.run_id, second.run_id]
        assert json.loads(session.turns[0].messages[1].tool_calls[0].raw_arguments) == {"a": 1, "b": 2}


def test_chat_sync_goes_on_in_the_file_from_loop_to_loop(path):
    store = SqliteStore(path)
    agent = Agent(model=ScriptedModel("one", "two"), store=store)
    assert [agent.chat_sync(text, session_id="s").text for text in ("a", "b")] == ["one", "two"]
    asyncio.run(agent.aclose())

    async def versions():
        session = await store.open_session(SessionKey("s"), "x")
        await store.aclose()
        return session.version

    assert asyncio.run(versions()) == 2
