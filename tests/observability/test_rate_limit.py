"""Token buckets, places, and the line of those who wait: never more than allowed, in order, and nothing left behind."""

import asyncio
import random
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import RateLimitedError
from agentflow.observability.rate_limit import Lack, Limiter, MemoryLedger, Need, Quota, TokenBucket
from agentflow.streams import LoopClock
from tests.builders import turns

RATE = Quota(2.0, 1.0)  # two at once, one more each second
PLACES = Quota(2.0)


def rated(subject="u", amount=1.0, limit="rate"):
    return Need(limit, subject, RATE, amount)


def place(subject="u", limit="place", quota=PLACES):
    return Need(limit, subject, quota)


def a_limiter(**options):
    clock = LoopClock()
    ledger = MemoryLedger(clock)
    return Limiter(ledger, clock, **options), ledger


def now():
    return asyncio.get_running_loop().time()


def spawn(coroutine):
    return asyncio.get_running_loop().create_task(coroutine)


# -- buckets ---------------------------------------------------------------------------------------------


@given(
    st.floats(1, 50),
    st.floats(0.01, 20),
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 20), st.booleans()), min_size=1, max_size=60),
)
def test_no_window_gives_more_than_the_burst_and_what_came_back_in_it(burst, rate, asked):
    bucket, at, taken = TokenBucket(Quota(burst, rate), 0.0), 0.0, []
    for pause, amount, patient in asked:
        at += pause
        wait = bucket.wait(amount, at)
        if wait == inf or (wait and not patient):
            continue
        at += wait
        if bucket.wait(amount, at) == 0.0:
            bucket.charge(amount, at)
            taken.append((at, amount))
    for first in range(len(taken)):
        spent = 0.0
        for when, amount in taken[first:]:
            spent += amount
            assert spent <= burst + rate * (when - taken[first][0]) + 1e-6


@given(st.floats(1, 50), st.floats(0.01, 20), st.lists(st.floats(0, 30), max_size=20), st.floats(0, 50))
def test_the_wait_that_is_told_is_true(burst, rate, charges, amount):
    bucket = TokenBucket(Quota(burst, rate), 0.0)
    for charge in charges:
        bucket.charge(charge, 0.0)
    wait = bucket.wait(amount, 0.0)
    if amount > burst:
        assert wait == inf
    else:
        assert wait < 1e-6 or bucket.wait(amount, wait * 0.99) > 0.0
        assert bucket.wait(amount, wait + 1e-6) == 0.0


def test_a_clock_that_goes_backwards_gives_nothing_twice():
    bucket = TokenBucket(RATE, 10.0)
    bucket.charge(2.0, 10.0)
    bucket.charge(0.0, 5.0)
    assert bucket.wait(1.0, 10.5) == pytest.approx(0.5)


def test_a_debt_is_paid_before_anything_is_given_even_for_a_need_of_nothing():
    bucket = TokenBucket(RATE, 0.0)
    bucket.charge(12.0, 0.0)
    assert bucket.wait(0.0, 0.0) == pytest.approx(11.0)
    bucket.charge(-100.0, 0.0)
    assert bucket.level == RATE.amount


@pytest.mark.parametrize(("text", "amount", "rate"), [("60/m", 60.0, 1.0), ("5/s", 5.0, 5.0), ("24/d", 24.0, 1 / 3600)])
def test_a_rate_is_read(text, amount, rate):
    assert Quota.parse(text) == Quota(amount, pytest.approx(rate))


# -- the ledger in memory --------------------------------------------------------------------------------


class HandClock:
    at = 0.0

    def monotonic(self):
        return self.at


async def test_all_is_taken_or_nothing():
    ledger = MemoryLedger(HandClock())
    assert await ledger.take([rated("a", 2.0)], "1") is None
    lack = await ledger.take([rated("b", 2.0), place("b"), rated("a")], "2")
    assert lack == Lack(rated("a"), 1.0)
    assert await ledger.take([rated("b", 2.0), place("b"), place("b", "other")], "3") is None
    assert await ledger.take([rated("c", 3.0)], "4") == Lack(rated("c", 3.0), inf)


async def test_what_is_as_good_as_new_is_not_kept_and_the_table_is_bounded():
    clock = HandClock()
    ledger = MemoryLedger(clock, max_keys=100)
    for number in range(1000):
        assert await ledger.take([rated(f"u{number}"), place(f"u{number}")], "l") is None
        ledger.release([place(f"u{number}")], "l")
    assert len(ledger) == 100
    clock.at = 60.0
    await ledger.take([rated("last")], "l")
    assert len(ledger) == 1


# -- waiting ---------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_who_has_no_patience_is_told_when_to_come_back_and_it_is_true():
    limiter, _ = a_limiter()
    for _ in range(2):
        await limiter.acquire([rated()])
    for patience in (0.0, 0.9):
        with pytest.raises(RateLimitedError, match=r"'rate' is reached; try again in 1\.0 s") as refused:
            await limiter.acquire([rated()], patience)
        assert refused.value.retryable
    assert now() == 0.0
    await asyncio.sleep(refused.value.retry_after)
    await limiter.acquire([rated()])
    assert limiter.refused == {"rate": 2}


@pytest.mark.virtual_time
async def test_those_who_wait_are_served_in_order_and_nobody_overtakes_them():
    limiter, _ = a_limiter()
    await limiter.acquire([rated(amount=2.0)])
    served = []

    async def ask(name):
        await limiter.acquire([rated()], 60.0)
        served.append((name, now()))

    tasks = [spawn(ask(name)) for name in "abc"]
    await asyncio.sleep(0.999999)
    with pytest.raises(RateLimitedError) as refused:
        await limiter.acquire([rated()], 2.5)  # it would be the fourth
    assert refused.value.retry_after == pytest.approx(3.0, abs=1e-3)
    await asyncio.gather(*tasks)
    assert served == [(name, pytest.approx(at)) for name, at in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
    assert limiter.waiting == 0


@pytest.mark.virtual_time
async def test_one_users_line_holds_up_no_other_user():
    limiter, _ = a_limiter()
    both = [rated("all", 0.1, "all"), rated("a")]
    await limiter.acquire([rated("a", 2.0)])
    waiting = spawn(limiter.acquire(both, 60.0))
    await turns(2)
    await limiter.acquire([rated("all", 0.1, "all"), rated("b")])
    assert now() == 0.0
    await waiting


@pytest.mark.virtual_time
async def test_a_place_that_is_given_back_goes_to_the_first_in_line_at_once():
    limiter, _ = a_limiter()
    grants = [await limiter.acquire([place()]) for _ in range(2)]
    tasks = [spawn(limiter.acquire([place()], 60.0)) for _ in range(2)]
    await turns(2)
    grants[0].release()
    grants[0].release()
    await turns(3)
    assert [task.done() for task in tasks] == [True, False]
    tasks[0].result().release()
    await tasks[1]
    assert now() == 0.0


@pytest.mark.virtual_time
async def test_patience_ends_and_the_line_is_bounded():
    limiter, _ = a_limiter(max_waiting=1)
    for _ in range(2):
        await limiter.acquire([place()])
    waiting = spawn(limiter.acquire([place()], 5.0))
    await turns(2)
    with pytest.raises(RateLimitedError):
        await limiter.acquire([place()], 5.0)
    assert now() == 0.0
    with pytest.raises(RateLimitedError) as refused:
        await waiting
    assert (now(), refused.value.retry_after) == (5.0, 1.0)


@pytest.mark.virtual_time
async def test_who_lacks_one_thing_after_another_waits_for_both():
    limiter, _ = a_limiter()
    await limiter.acquire([rated("a", 2.0), rated("b", 2.0)])
    limiter.charge(rated("b"), 1.0)
    await limiter.acquire([rated("a"), rated("b")], 60.0)
    assert now() == pytest.approx(2.0)


@pytest.mark.virtual_time
async def test_what_can_never_be_is_refused_at_once_and_said_so():
    limiter, _ = a_limiter()
    with pytest.raises(RateLimitedError, match="allows 2 at once, and this takes 3") as refused:
        await limiter.acquire([rated(amount=3.0)], 60.0)
    assert (refused.value.retry_after, refused.value.retryable) == (None, False)


@pytest.mark.virtual_time
async def test_real_use_is_settled_afterwards():
    limiter, _ = a_limiter()
    grant = await limiter.acquire([rated(amount=1.0, limit="a.tokens")])
    grant.settle("tokens", 4.0)
    with pytest.raises(RateLimitedError) as refused:
        await limiter.acquire([rated(amount=1.0, limit="a.tokens")])
    assert refused.value.retry_after == pytest.approx(3.0)


@pytest.mark.virtual_time
async def test_a_place_that_is_held_all_the_same_counts():
    limiter, ledger = a_limiter()
    held = [limiter.hold([place()]) for _ in range(3)]
    with pytest.raises(RateLimitedError):
        await limiter.acquire([place()])
    for grant in held:
        grant.release()
    assert len(ledger) == 0


@pytest.mark.virtual_time
async def test_a_thousand_cancels_at_any_moment_leave_nothing():
    limiter, ledger = a_limiter()
    chance = random.Random(7)

    async def work():
        grant = await limiter.acquire([place(), place("all", "all", Quota(3.0))], 60.0)
        try:
            await asyncio.sleep(chance.random())
        finally:
            grant.release()

    tasks = []
    for _ in range(1000):
        tasks.append(spawn(work()))
        await asyncio.sleep(chance.random() / 50)
        tasks[chance.randrange(len(tasks))].cancel()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert (len(ledger), limiter.waiting, limiter._lines) == (0, 0, {})
