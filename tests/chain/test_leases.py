"""Who works on a run: leases taken, renewed, lost and given back; and what a run does that has lost its own."""

import asyncio

import pytest

from agentflow import Agent, tool
from agentflow.chain.leases import LEASE_SECONDS, Leases
from agentflow.errors import LeaseLostError, StoreError
from agentflow.events import WarningEvent
from agentflow.stores.base import Letter, SessionKey
from agentflow.stores.in_memory import InMemoryStore
from agentflow.streams import LoopClock, TaskOwner
from agentflow.testing import FailingLog, ScriptedModel, call
from tests.builders import turns

pytestmark = pytest.mark.virtual_time


def now():
    return asyncio.get_running_loop().time()


def a_store():
    """One whose leases lapse in virtual time."""
    return InMemoryStore(now=now)


class Counted(FailingLog):
    """A store that counts its calls, and at whose `fails(name)` a call raises."""

    def __init__(self, store, fails=lambda name: None):
        super().__init__(store, fail_at=0)
        self.fails = fails

    async def _pass_on(self, name, *args, **kwargs):
        result = await super()._pass_on(name, *args, **kwargs)
        error = self.fails(name)
        if error is not None:
            raise error
        return result


class CountingClock(LoopClock):
    """Counts the timers that are set."""

    def __init__(self):
        self.timers = []

    def call_later(self, delay, callback):
        timer = super().call_later(delay, callback)
        self.timers.append(timer)
        return timer

    @property
    def open(self):
        return [timer for timer in self.timers if not timer.cancelled() and timer.when() > now()]


def leases_of(store):
    clock, owner = CountingClock(), TaskOwner()
    return Leases(store, clock, owner), clock, owner


def never(error):
    raise AssertionError(f"a lease was lost: {error}")


@tool(timeout=3600)
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


def waiting(store, seconds=100.0, **options):
    return Agent(model=ScriptedModel([call("wait", seconds=seconds)], "That took long."), tools=[wait], store=store)


# -- the leases themselves -----------------------------------------------------------------------------------


async def test_all_leases_are_renewed_by_one_timer_three_times_in_their_time():
    store = Counted(a_store())
    leases, clock, owner = leases_of(store)
    for run_id in ("a", "b", "c"):
        assert await leases.take(run_id, never) is not None
        await asyncio.sleep(1)
    assert len(clock.open) == 1
    await asyncio.sleep(10 * LEASE_SECONDS)
    assert (len(clock.open), store.calls["renew_lease"]) == (1, 3 * 3 * 10)
    assert await store.acquire_lease("a", "another", 1.0) is None
    for run_id in ("a", "b", "c"):
        await leases.give_back(run_id)
    assert (clock.open, len(owner)) == ([], 0)
    assert await store.acquire_lease("a", "another", 1.0) is not None


async def test_a_lease_is_given_back_once_and_one_that_was_never_taken_not_at_all():
    store = Counted(a_store())
    leases, _, _ = leases_of(store)
    await leases.give_back("a")
    await leases.take("a", never)
    await leases.give_back("a")
    await leases.give_back("a")
    assert store.calls["release_lease"] == 1


async def test_what_one_has_taken_no_other_gets_not_even_by_the_same_leases():
    """As two recoveries at once in one process do."""
    leases, clock, _ = leases_of(a_store())
    assert await leases.take("a", never) is not None
    assert await leases.take("a", never) is None
    await leases.give_back("a")
    assert await leases.take("a", never) is not None
    await leases.give_back("a")
    assert clock.open == []


async def test_whose_lease_is_lost_is_told_once_and_the_others_are_kept():
    store = a_store()
    leases, clock, _ = leases_of(store)
    lost = []
    token = await leases.take("a", lost.append)
    await leases.take("b", never)
    await store.release_lease("a", token)
    assert await store.acquire_lease("a", "another", 1000.0) is not None
    await asyncio.sleep(5 * LEASE_SECONDS)
    (error,) = lost
    assert isinstance(error, LeaseLostError)
    assert await store.acquire_lease("b", "another", 1.0) is None
    await leases.give_back("a")
    assert await store.acquire_lease("a", "a third", 1.0) is None  # it was not ours to give
    await leases.give_back("b")
    assert clock.open == []


async def test_who_has_a_lease_hears_of_letters_at_once_and_with_every_renewal_while_they_lie():
    store = a_store()
    leases, _, _ = leases_of(store)
    heard = []
    await leases.take("a", never, lambda: heard.append(now()))
    await leases.take("b", never, lambda: heard.append("b"))
    await asyncio.sleep(1)
    await store.send_letter("a", Letter(id="1", verb="answer"))
    await asyncio.sleep(10)
    assert heard == [1, LEASE_SECONDS / 3, LEASE_SECONDS * 2 / 3]
    await store.delete_letters("a", ["1"])
    await asyncio.sleep(10)
    await leases.give_back("a")
    await store.acquire_lease("a", "another", 1000.0)
    await store.send_letter("a", Letter(id="2", verb="answer"))
    await asyncio.sleep(10)
    assert len(heard) == 3
    await leases.give_back("b")


async def test_whose_lease_is_lost_hears_no_letters_any_more():
    store = a_store()
    leases, _, _ = leases_of(store)
    lost, heard = [], []
    token = await leases.take("a", lost.append, lambda: heard.append("a"))
    await store.release_lease("a", token)
    await store.acquire_lease("a", "another", 1000.0)
    await asyncio.sleep(LEASE_SECONDS)
    await store.send_letter("a", Letter(id="1", verb="answer"))
    assert (len(lost), heard) == (1, [])


async def test_what_an_old_lease_comes_to_too_late_is_nothing_to_the_one_that_was_taken_since():
    class Slow(FailingLog):
        async def _pass_on(self, name, *args, **kwargs):
            if name == "renew_lease":
                await asyncio.sleep(1)
            return await super()._pass_on(name, *args, **kwargs)

    store = a_store()
    leases, _, _ = leases_of(Slow(store, fail_at=0))
    await leases.take("a", never)
    await asyncio.sleep(LEASE_SECONDS / 3 + 0.5)  # it is being renewed
    await leases.give_back("a")
    await leases.take("a", never)
    await asyncio.sleep(2 * LEASE_SECONDS - 1)
    assert await store.acquire_lease("a", "another", 1.0) is None
    await leases.give_back("a")


@pytest.mark.parametrize("error", [StoreError("down"), OSError("a driver's own"), RuntimeError("a fault in it")])
async def test_a_store_that_fails_meanwhile_loses_nothing_and_is_asked_again(error):
    store = Counted(a_store())
    leases, _, _ = leases_of(store)
    await leases.take("a", never)
    await leases.take("b", never)
    store.fails = lambda name: error if name == "renew_lease" else None
    await asyncio.sleep(3 * LEASE_SECONDS)
    store.fails = lambda name: None
    await asyncio.sleep(LEASE_SECONDS)
    for run_id in ("a", "b"):
        assert await store.acquire_lease(run_id, "another", 1.0) is None
        await leases.give_back(run_id)


# -- the leases of runs --------------------------------------------------------------------------------------


async def test_a_run_is_owned_from_its_start_to_its_end_and_an_idle_agent_holds_nothing():
    store = a_store()
    clock = CountingClock()
    async with Agent(
        model=ScriptedModel([call("wait", seconds=100.0)], "So."), tools=[wait], store=store, clock=clock
    ) as a:
        chain = a.start("hello")
        await asyncio.sleep(60)
        assert await store.acquire_lease(chain.run_id, "another", 1.0) is None
        await chain
        await turns()
        assert (clock.open, len(a._run_runtime().owner)) == ([], 0)
        assert len(asyncio.all_tasks()) == 1
        assert await store.acquire_lease(chain.run_id, "another", 1.0) is not None


async def test_a_run_that_could_not_begin_gives_its_lease_back():
    store = Counted(a_store(), lambda name: StoreError("down") if name == "open_session" else None)
    async with waiting(store) as agent:
        with pytest.raises(StoreError, match="down"):
            await agent.start("hello")
        await turns()
        assert store.calls["release_lease"] == 1
        assert not agent._run_runtime().leases._held


async def test_a_run_whose_log_fails_gives_its_lease_back_so_that_it_can_be_recovered():
    store = FailingLog(a_store(), fail_at=2)
    async with waiting(store) as agent:
        chain = agent.start("hello")
        with pytest.raises(StoreError):
            await chain
        await turns()
        assert await store.acquire_lease(chain.run_id, "another", 1.0) is not None


async def take_over(store, run_id, seconds=LEASE_SECONDS):
    """What another process does that believes the owner dead: its token."""
    store._runs[run_id].owned_until = now()
    return await store.acquire_lease(run_id, "another", seconds)


async def lose(agent, chain, store):
    """The chain's error, once its lease was lost to another process."""
    await take_over(store, chain.run_id, 1000.0)
    with pytest.raises(LeaseLostError):
        await chain
    await turns()


async def test_a_run_whose_lease_is_lost_stops_at_once_and_writes_nothing_any_more():
    store = a_store()
    async with waiting(store) as agent:
        chain = agent.start("hello", session_id="s")
        await asyncio.sleep(1)
        seen = list(await store.read(chain.run_id, 0, 100))
        began = now()
        await lose(agent, chain, store)
        assert now() - began <= LEASE_SECONDS / 3
        await asyncio.sleep(1000)
        assert list(await store.read(chain.run_id, 0, 100)) == seen
        assert not agent._runs
        assert len(asyncio.all_tasks()) == 1


async def test_a_run_whose_lease_is_lost_leaves_its_session_to_the_new_owner():
    store = a_store()
    async with waiting(store) as agent:
        chain = agent.start("hello", session_id="s")
        await asyncio.sleep(1)
        await lose(agent, chain, store)
        assert (await store.find_session(SessionKey("s"))).active_run == chain.run_id
        assert (await store.find_run(chain.run_id)).session == SessionKey("s")


@pytest.mark.parametrize("count", range(1, 7))
async def test_an_append_that_was_fenced_off_is_not_taken_for_done_where_the_new_owner_wrote_as_much(count):
    store = a_store()
    async with waiting(store, 3.0) as agent:
        chain = agent.start("hello", session_id="s")
        await asyncio.sleep(1)
        token = await take_over(store, chain.run_id)
        log = list(await store.read(chain.run_id, 0, 100))
        theirs = [
            WarningEvent(code="x", message="mine", **chain._agent_run.info.header() | {"seq": seq, "iteration": 1})
            for seq in range(len(log) + 1, len(log) + 1 + count)
        ]
        await store.append(chain.run_id, theirs, token=token)
        seen = []
        agent.bus.attach(seen.append)
        with pytest.raises(LeaseLostError):
            await chain
        assert list(await store.read(chain.run_id, 0, 100)) == [*log, *theirs]
        assert not seen


async def test_an_owner_that_comes_to_its_end_too_late_keeps_no_turn_and_announces_no_end():
    store = a_store()
    async with waiting(store, 3.0) as agent:
        chain = agent.start("hello", session_id="s")
        await asyncio.sleep(1)
        await take_over(store, chain.run_id)
        chain.cancel()
        with pytest.raises(LeaseLostError):
            await chain
        await turns()
        assert await store.read_turns(SessionKey("s"), 0, 10) == ()
        assert (await store.find_run(chain.run_id)).closing == ()
        assert (await store.find_session(SessionKey("s"))).active_run == chain.run_id
