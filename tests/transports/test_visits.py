"""A run of another process is marked as read for as long as it is read here: now and then, and only if that matters."""

import pytest

from agentflow.errors import StoreError
from agentflow.events import State, StateEvent, stamp
from agentflow.stores.in_memory import InMemoryStore
from agentflow.streams import TaskOwner
from agentflow.testing import FailingLog
from agentflow.transports.visits import Visits
from tests.builders import begin, cancelled, delta, make, resolved
from tests.transports.served import HandClock, settled

GRACE = 30.0
SUSPENDED = (State.EXECUTING_TOOLS, State.SUSPENDED)
RESUMED = (State.SUSPENDED, State.EXECUTING_TOOLS)


def moved(previous, current):
    return make(StateEvent, previous=previous, current=current, reason="x")


class Visited:
    """A store with a run in it, on a clock that is moved, and the visits to it."""

    def __init__(self, **fails):
        self.clock = HandClock()
        self.kept = InMemoryStore(now=self.clock.monotonic)
        self.store = FailingLog(self.kept, **({"fail_at": 0} | fails))
        self.visits = Visits(self.store, self.clock, GRACE, TaskOwner())

    async def append(self, *events):
        """Put the events into the log, and give them as a reader gets them."""
        last = await self.kept.last("r") or 0
        for seq, event in enumerate(events, last + 1):
            stamp(event, seq, "2026-01-01T00:00:00.000000Z")
        await self.kept.append("r", events)
        return events

    async def advance(self, seconds):
        for _ in range(seconds):
            self.clock.advance(1.0)
            await settled(3)

    @property
    def marks(self):
        return self.store.calls["mark_read"]

    @property
    def left(self):
        return self.kept.read_for("r")


async def visited(*events, **fails):
    here = Visited(**fails)
    await here.append(begin(), *events)
    return here


async def test_a_run_is_marked_three_times_in_the_grace_however_many_read_it():
    here = await visited(delta("x"))
    with here.visits.reading("r"):
        await settled()
        with here.visits.reading("r") as saw:
            for _ in range(29):
                saw(await here.append(delta("y")))
                await here.advance(1)
    assert (here.marks, len(here.visits)) == (3, 1)
    await here.advance(1)
    assert (here.marks, len(here.visits)) == (3, 0)


async def test_whoever_leaves_has_the_grace_to_come_back_and_one_third_more_at_most():
    here = await visited(delta("x"))
    with here.visits.reading("r"):
        await here.advance(19)  # just before a mark is due
    assert GRACE < await here.left <= GRACE * 4 / 3
    await here.advance(40)
    assert await here.left == 0


async def test_who_comes_and_goes_all_the_time_marks_no_more_than_who_stays():
    here = await visited(delta("x"))
    for _ in range(20):
        with here.visits.reading("r"):
            await settled()
        await here.advance(1)
    assert here.marks == 2
    await here.advance(20)
    assert len(here.visits) == 0


@pytest.mark.parametrize("last", [cancelled, lambda: moved(*SUSPENDED)])
async def test_a_run_that_has_ended_or_waits_is_not_marked(last):
    here = await visited(last())
    with here.visits.reading("r") as saw:
        await settled()
        saw(await here.kept.read("r", 0, 100))
        await here.advance(100)
    assert (here.marks, len(here.visits)) == (0, 0)


async def test_a_run_is_marked_until_it_waits_and_again_when_it_goes_on():
    here = await visited()
    with here.visits.reading("r") as saw:
        await settled()
        saw(await here.append(moved(*SUSPENDED)))
        await here.advance(100)
        assert here.marks == 1
        saw(await here.append(resolved("c", "approved"), moved(*RESUMED)))
        await settled()
        assert here.marks == 2
        await here.advance(10)
        assert here.marks == 3
        saw(await here.append(cancelled()))
        await here.advance(100)
        assert here.marks == 3


async def test_who_reads_an_old_part_does_not_take_it_for_new():
    here = await visited(moved(*SUSPENDED), resolved("c", "approved"), moved(*RESUMED), delta("x"))
    with here.visits.reading("r") as saw:
        await settled()
        saw(await here.kept.read("r", 0, 2))
        await here.advance(10)
        assert here.marks == 2


async def test_who_left_before_it_was_known_where_the_run_stands_marks_nothing():
    here = await visited()
    with here.visits.reading("r"):
        pass
    await here.advance(20)
    assert (here.marks, len(here.visits)) == (0, 0)


async def test_a_run_without_events_is_not_marked_before_it_has_any():
    here = Visited()
    with here.visits.reading("r") as saw:
        await here.advance(20)
        assert here.marks == 0
        saw(await here.append(begin(), moved(State.IDLE, State.THINKING)))
        await settled()
        assert here.marks == 1


@pytest.mark.parametrize(("method", "marks"), [("last", 0), ("mark_read", 2)])
async def test_a_store_that_fails_is_told_of_and_asked_again(method, marks, caplog):
    here = await visited(fail_at=1, of=method, error=StoreError("down"))
    with here.visits.reading("r") as saw:
        await settled()
        await here.advance(10)
        assert "is read here, and could not be" in caplog.text
        assert here.marks == marks
        saw(await here.append(moved(State.THINKING, State.AWAITING_MODEL)))
        await here.advance(10)
        assert here.marks > marks


async def test_nothing_is_marked_after_the_close():
    here = await visited()
    with here.visits.reading("r"):
        await settled()
        here.visits.close()
        await here.advance(100)
    assert (here.marks, len(here.visits)) == (1, 0)


async def test_a_grace_of_nothing_does_not_mark_without_end():
    here = await visited()
    here.visits = Visits(here.store, here.clock, 0.0, TaskOwner())
    with here.visits.reading("r"):
        await settled()
        await here.advance(5)
    assert here.marks == 6
