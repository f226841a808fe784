"""From every moment at which a process may die its runs go on, once, and nothing is done again that must not be."""

import asyncio
import contextlib
from collections import Counter
from itertools import count

import pytest

from agentflow.errors import StoreError
from agentflow.events import TERMINAL_TYPES, EventType, State
from agentflow.state import RunState, kept_messages, reduce
from agentflow.stores.base import SessionKey
from agentflow.stores.in_memory import InMemoryStore
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import FailingLog, assert_laws, run_virtual
from tests.builders import log_of, of
from tests.chain.crashes import LAPSED, SESSION, STORIES, attend, die, file_left, kill_at, memory_left


def fold(log, agent):
    state = RunState(run_id=log[0].run_id, limits=agent._run_runtime().limits)
    for event in log:
        state, _ = reduce(state, event)
    return state


async def open_logs(store):
    """The events of each run that has not ended, and of each that is just ending what was announced."""
    records = await store.list_runs(open_only=True)
    return {record.run_id: list(await store.read(record.run_id, 0, 10_000)) for record in records}, {
        record.run_id for record in records if record.closing
    }


async def recover_all(story, store, done):
    """Two processes come up at once and recover; all that has to hold of it then."""
    await asyncio.sleep(60)  # the clock on the wall has gone on
    before, closing = await open_logs(store)
    first, second = story.make(store, done), story.make(store, done)
    async with first, second:
        begun = [run_id for run_id, log in before.items() if log]
        followers = asyncio.gather(*(log_of(second, run_id) for run_id in begun))
        await asyncio.sleep(0)
        chains = [chain for found in await asyncio.gather(first.recover(), second.recover()) for chain in found]
        assert Counter(chain.run_id for chain in chains) == Counter(set(begun) - closing)
        await asyncio.gather(*map(attend, chains))
        assert [chain._agent_run._writer.dropped for chain in chains] == [0] * len(chains)
        logs = dict(zip(begun, await followers, strict=True))
        for run_id, log in logs.items():
            check_log(log, before[run_id], story, first, ending=run_id in closing)
        check_done(done, logs.values(), story)
        done.clear()
        after = first.start("and now?", session_id=SESSION)
        await attend(after)
        await check_store(store, first)
        events = {record.run_id: record.last for record in await store.list_runs()}
        assert [await first.recover(), await second.recover()] == [[], []]
        assert {record.run_id: record.last for record in await store.list_runs()} == events
    return logs


def check_log(log, before, story, agent, *, ending):
    assert_laws(log)
    assert log[: len(before)] == before
    assert log[-1].type is EventType.FINAL
    state = fold(before, agent)
    broken = [chain_id for chain_id, chain in state.chains.items() if chain.state is State.AWAITING_MODEL]
    rolled_back = [event for event in of(log[len(before) :], EventType.ROLLBACK) if event.reason == "crashed"]
    assert sorted(event.chain_id for event in rolled_back) == sorted(() if ending else broken)


async def check_store(store, agent):
    """Every run has ended, and the session holds each that has begun in it once, as its log says."""
    turns = {turn.run_id: turn for turn in await store.read_turns(SessionKey(SESSION), 0, 100)}
    runs = await store.list_runs()
    for record in runs:
        log = await store.read(record.run_id, 0, 10_000)
        assert (record.ended, record.closing, len(of(log, *TERMINAL_TYPES))) == (True, (), 1), record
        turn = turns.pop(record.run_id)
        assert (turn.outcome, turn.messages) == (log[-1].type.value, kept_messages(fold(log, agent).root))
    assert not turns
    session = await store.find_session(SessionKey(SESSION))
    assert session is None or session.active_run is None


def check_done(done, logs, story):
    """Nothing was done twice that must not be, and what a log calls done was."""
    assert {what for what, times in Counter(done).items() if times > 1} <= story.again
    for log in logs:
        started = {(event.call_id, event.attempt): event for event in of(log, EventType.TOOL_START)}
        for end in of(log, EventType.TOOL_COMPLETE):
            start = started[end.call_id, end.attempt]
            if start.child_chain_id is None and start.tool != "ask_user":
                assert any(line.startswith(f"{start.tool} {start.arguments['what']}") for line in done)


def kill_at_every(steps, name, store_at, left_at):
    """Live a story until each of `steps`, as long as it lasts, and recover each time: how many times it was."""
    story = STORIES[name]
    for step in steps:
        store, done = store_at(step), []

        async def play(store=store, done=done):
            async with story.make(store, done) as agent:
                await story.live(agent)

        left = die(step, play, lambda store=store, done=done, step=step: (left_at(store, step), list(done)))
        asyncio.run(store.aclose())
        if left is None:
            return
        try:
            run_virtual(recover_all(story, *left))
        except BaseException as error:
            error.add_note(f"killed at step {step} of {name!r}")
            raise
        asyncio.run(left[0].aclose())


@pytest.mark.parametrize("name", STORIES)
def test_a_run_goes_on_from_every_moment_at_which_its_process_may_die(name):
    kill_at_every(count(1), name, lambda _: InMemoryStore(now=lambda: 0.0), lambda store, _: memory_left(store))


@pytest.mark.parametrize("name", STORIES)
def test_a_run_in_a_file_goes_on_too(name, tmp_path):
    def store_at(step):
        store = SqliteStore(tmp_path / str(step))
        asyncio.run(store.last("none"))  # it is opened, and its tables are made
        return store

    kill_at_every(count(5, 15), name, store_at, lambda store, step: file_left(store, tmp_path / f"{step} left"))


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("name", ["keyed", "children"])
def test_whichever_store_call_of_a_recovery_fails_the_run_ends_once_then_or_by_the_next(name, applied):
    made = STORIES[name]
    for fail_at in count(1):
        store, done = kill_at(made.make, lambda event: event.type is EventType.TOOL_START and event.tool != "a1")
        failing = FailingLog(store, fail_at=fail_at, of=None, applied=applied)

        async def second_life(store=store, done=done, failing=failing):
            async with made.make(failing, done) as agent:
                with contextlib.suppress(StoreError):
                    await asyncio.gather(*map(attend, await agent.recover()))
            await recover_all(made, memory_left(store, later=2 * LAPSED), done)

        try:
            run_virtual(second_life())
        except BaseException as error:
            error.add_note(f"store call {fail_at} failed")
            raise
        if failing.calls.total() < fail_at:
            break
