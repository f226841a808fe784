"""Circuit breakers, in time that the tests move."""

import pytest

from agentflow.observability.breaker import Breaker, BreakerPolicy, Breakers, Change

POLICY = BreakerPolicy(window=10, minimum=4, failures=0.5, slow=0.75, slow_after=5.0, open_for=30.0, probes=2)


class HandClock:
    at = 0.0

    def monotonic(self):
        return self.at


def a_breaker(**changes):
    return Breaker("model:p", POLICY if not changes else BreakerPolicy(**changes))


def call(breaker, verdict="ok", seconds=1.0, now=0.0):
    period, left = breaker.enter(now)
    assert left == 0.0
    breaker.leave(period, verdict, seconds, now)


def opened():
    breaker = a_breaker()
    for _ in range(4):
        call(breaker, "failed")
    return breaker


def test_it_opens_when_enough_calls_have_failed_and_not_before():
    breaker = a_breaker()
    for verdict in ("failed", "failed", "ok"):
        call(breaker, verdict)
    assert breaker.state == "closed"
    call(breaker, "ok")
    assert breaker.state == "open"
    assert breaker.enter(10.0) == (None, 20.0)


def test_only_the_last_calls_count():
    breaker = a_breaker()
    for _ in range(10):
        call(breaker)
    for _ in range(4):
        call(breaker, "failed")
    assert breaker.state == "closed"
    call(breaker, "failed")
    assert breaker.state == "open"


def test_it_opens_for_slow_calls_too():
    breaker = a_breaker()
    for seconds in (6.0, 6.0, 5.0, 6.0):
        call(breaker, "ok", seconds)
    assert breaker.state == "open"


def test_what_tells_nothing_counts_for_nothing():
    breaker = a_breaker()
    for _ in range(100):
        call(breaker, "void", 60.0)
    assert (breaker.state, breaker.shares()) == ("closed", (0.0, 0.0))


def test_a_minimum_over_the_window_is_the_window():
    breaker = a_breaker(window=2, minimum=10)
    for _ in range(2):
        call(breaker, "failed")
    assert breaker.state == "open"


def test_after_its_time_it_lets_so_many_probes_through_and_closes_when_all_are_well():
    breaker = opened()
    first, second = breaker.enter(30.0), breaker.enter(30.0)
    assert breaker.state == "half_open"
    assert breaker.enter(30.0)[0] is None
    breaker.leave(first[0], "ok", 1.0, 31.0)
    assert breaker.enter(31.0)[0] is None
    breaker.leave(second[0], "ok", 1.0, 32.0)
    assert (breaker.state, breaker.shares()) == ("closed", (0.0, 0.0))


@pytest.mark.parametrize(("verdict", "seconds"), [("failed", 1.0), ("ok", 6.0)])
def test_a_probe_that_is_not_well_opens_it_for_as_long_again(verdict, seconds):
    breaker = opened()
    period, _ = breaker.enter(30.0)
    breaker.leave(period, verdict, seconds, 40.0)
    assert breaker.enter(69.0) == (None, 1.0)
    assert breaker.enter(70.0)[0] is not None


def test_a_probe_that_tells_nothing_makes_room_for_another():
    breaker = opened()
    for _ in range(5):
        call(breaker, "void", now=30.0)
    assert breaker.state == "half_open"
    call(breaker, now=31.0)
    call(breaker, now=31.0)
    assert breaker.state == "closed"


def test_calls_that_began_before_it_opened_tell_nothing_of_its_probes():
    breaker = a_breaker()
    early, _ = breaker.enter(0.0)
    for _ in range(4):
        call(breaker, "failed")
    breaker.enter(30.0)
    breaker.leave(early, "failed", 1.0, 31.0)
    assert breaker.state == "half_open"


def test_every_change_is_told_once_with_what_made_it_and_the_snapshot_says_where_each_stands():
    clock, told, warned = HandClock(), [], []
    breakers = Breakers(POLICY, clock, on_change=told.append)

    def made(name, verdict):
        period, _ = breakers.enter(name, warned.append)
        if period is not None:
            breakers.leave(name, period, verdict, 1.0, warned.append)

    for verdict in ("failed", "failed", "failed", "ok", "ok"):
        made("tool:t", verdict)
    made("model:p", "ok")
    clock.at = 30.0
    made("tool:t", "ok")
    made("tool:t", "ok")
    assert told == warned
    assert told == [
        Change("tool:t", "closed", "open", 0.75, 0.0),
        Change("tool:t", "open", "half_open", 0.75, 0.0),
        Change("tool:t", "half_open", "closed", 0.0, 0.0),
    ]
    assert breakers.snapshot() == [
        {"name": "model:p", "state": "closed", "failed": 0.0, "slow": 0.0},
        {"name": "tool:t", "state": "closed", "failed": 0.0, "slow": 0.0},
    ]
