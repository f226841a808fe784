"""Agents of several processes in one session: no message is lost or mixed with others, and a dead one holds nobody up.

`pytest -m soak tests/stores/test_processes.py` has 400 messages.
"""

from itertools import pairwise
from pathlib import Path

import pytest

from agentflow import Agent, ModelChunk
from agentflow.stores.base import SessionKey
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import assert_laws
from agentflow.testing.store_probe import until
from tests.builders import log_of
from tests.kept_history import assert_kept
from tests.stores.children import started

SESSION = SessionKey("s")
SCRIPT = Path(__file__).parent / "talkers.py"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
async def store(path):
    store = SqliteStore(path)
    yield store
    await store.aclose()


async def whole(request):
    yield ModelChunk(text="a whole answer", finish_reason="stop")


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.soak)])
async def test_four_processes_talk_in_one_session_each_in_turn(count, path, store):
    with started(path, f"talk {count}", *"abcd", script=SCRIPT) as children:
        assert [child.stdout.readline() for child in children] == ["done\n"] * 4
    turns = await store.read_turns(SESSION, 0, 1000)
    said = [turn.messages[0].text for turn in turns]
    for name in "abcd":
        assert [text for text in said if text.startswith(name)] == [f"{name}-{number}" for number in range(count)]
    assert len(said) == 4 * count
    for before, after in pairwise(["nothing", *said]):
        number = said.index(after)
        assert [message.text for message in turns[number].messages] == [after, f"{after} after {before}"]
        log = await store.read(turns[number].run_id, 0, 1000)
        assert_laws(log)
        assert log[0].history_version == number
    await assert_kept(store)


async def taken_over(agent):
    """The chain of the run whose process has gone, once its lease has lapsed."""
    chains = []

    async def recovered():
        chains.extend(await agent.recover())
        return chains

    await until(recovered, "the run is taken over")
    (chain,) = chains
    return chain


async def test_who_waits_for_the_session_of_a_killed_process_gets_it_once_its_run_is_taken_over(path, store):
    with started(path, "freeze", "first", script=SCRIPT) as (child,):
        run_id = child.stdout.readline().strip()
        child.kill()
    async with Agent(model=whole, store=store) as agent:
        waits = agent.start("second", session_id="s")
        chain = await taken_over(agent)
        assert chain.run_id == run_id
        assert ((await chain).text, (await waits).text) == ("a whole answer", "a whole answer")
        assert_laws(await log_of(agent, run_id))
        assert [turn.messages[0].text for turn in await store.read_turns(SESSION, 0, 10)] == ["first", "second"]


async def test_what_a_process_still_writes_that_stood_still_for_too_long_is_refused(path, store):
    with started(path, "freeze", "first", script=SCRIPT) as (child,):
        run_id = child.stdout.readline().strip()
        async with Agent(model=whole, store=store) as agent:
            chain = await taken_over(agent)
            assert (chain.run_id, (await chain).text) == (run_id, "a whole answer")
            log, turns = await log_of(agent, run_id), await store.read_turns(SESSION, 0, 10)
            child.stdin.write("go on\n")
            child.stdin.flush()
            assert child.stdout.readline() == "LeaseLostError\n"
            child.wait()
            assert await log_of(agent, run_id) == log
            assert await store.read_turns(SESSION, 0, 10) == turns
            assert len(turns) == 1
