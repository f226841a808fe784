"""The bus as the conformance suites of reactive streams see one: order, isolation, re-entrancy, bounds."""

import asyncio
import gc
import logging
import weakref

import pytest

from agentflow import Agent, EventBus
from agentflow.events import EventType
from agentflow.testing import ScriptedModel, assert_laws, call
from tests.builders import TOOLS, delta, log_of, turns, warning


def seqs(events):
    return [event.text for event in events]


def publish(bus, *texts, report=None):
    bus.publish([delta(text) for text in texts], report)


def test_everybody_gets_every_event_in_publishing_order():
    bus, one, two = EventBus(), [], []
    bus.attach(one.append)
    bus.events.subscribe(two.append)
    publish(bus, "a", "b")
    publish(bus, "c")
    assert seqs(one) == seqs(two) == ["a", "b", "c"]


def test_an_event_published_from_within_comes_after_for_everybody():
    bus, one, two = EventBus(), [], []

    def reenter(event):
        one.append(event)
        if event.text == "a":
            publish(bus, "x", "y")
            assert seqs(one) == ["a"]  # not nested

    bus.attach(reenter)
    bus.attach(two.append)
    publish(bus, "a", "b")
    assert seqs(one) == seqs(two) == ["a", "b", "x", "y"]


def test_a_tap_that_feeds_itself_is_bounded_in_depth():
    bus, count = EventBus(), 0

    def again(event):
        nonlocal count
        count += 1
        if count < 100_000:
            bus.publish([event])

    bus.attach(again)
    publish(bus, "a")
    assert count == 100_000


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]
)
def test_a_tap_that_raises_anything_hurts_nobody_and_is_detached_after_ten_in_a_row(error, caplog):
    bus, before, after, tries = EventBus(), [], [], []

    def fragile(event):
        tries.append(event)
        raise error

    bus.attach(before.append)
    bus.attach(fragile)
    bus.attach(after.append)
    with caplog.at_level(logging.CRITICAL, logger="agentflow.bus"):
        publish(bus, *map(str, range(15)))
    assert len(before) == len(after) == 15
    assert (len(tries), bus.failures) == (10, 10)


def test_a_tap_that_raises_now_and_then_stays():
    bus, tries = EventBus(), []

    def every_third(event):
        tries.append(event)
        if len(tries) % 3 == 0:
            raise ValueError

    bus.attach(every_third)
    publish(bus, *map(str, range(100)))
    assert (len(tries), bus.failures) == (100, 33)


def test_an_rx_subscriber_that_is_detached_gets_on_error():
    bus, errors = EventBus(), []

    def fragile(event):
        raise ValueError("no")

    bus.events.subscribe(fragile, errors.append)
    publish(bus, *map(str, range(11)))
    assert [str(error) for error in errors] == ["no"]


def test_even_an_on_error_that_raises_hurts_nobody():
    bus, others = EventBus(), []

    def fragile(event):
        raise SystemExit

    def worse(error):
        raise RuntimeError(str(error))

    bus.events.subscribe(fragile, worse)
    bus.attach(others.append)
    publish(bus, *map(str, range(12)))
    assert len(others) == 12


def test_detaching_is_at_once_and_harmless_twice_and_from_within():
    bus, one, two = EventBus(), [], []
    second = bus.attach(two.append)

    def once(event):
        one.append(event)
        mine.dispose()
        mine.dispose()

    mine = bus.attach(once)

    def remove_third(event):
        third_handle.dispose()

    bus.attach(remove_third)
    third = []
    third_handle = bus.attach(third.append)
    publish(bus, "a", "b")
    second.dispose()
    publish(bus, "c")
    assert (seqs(one), seqs(two), third) == (["a"], ["a", "b"], [])


def test_who_joins_during_a_dispatch_gets_the_next_event():
    bus, late = EventBus(), []

    def join(event):
        if event.text == "a":
            bus.attach(late.append)

    bus.attach(join)
    publish(bus, "a", "b")
    publish(bus, "c")
    assert seqs(late) == ["b", "c"]


def test_who_joins_late_gets_what_is_published_from_then_on():
    bus, late = EventBus(), []
    publish(bus, "a")
    bus.attach(late.append)
    publish(bus, "b")
    assert seqs(late) == ["b"]


def test_a_detached_tap_is_forgotten():
    class Tap:
        def __call__(self, event):
            pass

    bus, tap = EventBus(), Tap()
    handle, gone = bus.attach(tap), weakref.ref(tap)
    handle.dispose()
    del tap, handle
    gc.collect()
    assert gone() is None


def test_async_taps_are_refused():
    async def tap(event):
        pass

    class Callable:
        async def __call__(self, event):
            pass

    for refused in (tap, Callable()):
        with pytest.raises(TypeError, match=r"async.*agent\.follow"):
            EventBus().attach(refused)


class Timer:
    """Time that taps let pass."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def slow_bus(*, slow_from=0.0):
    timer = Timer()
    bus = EventBus(timer=timer)

    def quick(event):
        timer.now += 0.001

    def snail(event):
        timer.now += 0.2

    bus.attach(quick, name="quick")
    bus.attach(snail, name="snail")
    return bus, timer


def test_a_slow_tap_is_named_once_and_loses_nothing():
    bus, _ = slow_bus()
    seen, reports = [], []
    bus.attach(seen.append)
    publish(bus, *map(str, range(20)), report=lambda *report: reports.append(report))
    ((code, message, data),) = reports
    assert (code, data) == ("slow_tap", {"tap": "snail", "event": "delta", "milliseconds": 200.0})
    assert "snail took 200.0 ms" in message
    assert len(seen) == 20


def test_a_slow_tap_is_named_again_after_a_minute():
    bus, timer = slow_bus()
    reports = []
    publish(bus, "a", "b", report=lambda *report: reports.append(report))
    timer.now += 61
    publish(bus, "c", report=lambda *report: reports.append(report))
    assert len(reports) == 2


def test_a_slow_tap_that_raises_is_both():
    timer = Timer()
    bus, reports = EventBus(timer=timer), []

    def both(event):
        timer.now += 1
        raise ValueError

    bus.attach(both)
    publish(bus, "a", "b", report=lambda *report: reports.append(report))
    assert (len(reports), bus.failures) == (1, 2)


async def test_a_slow_tap_is_named_in_the_run_it_held_up():
    timer = Timer()
    bus = EventBus(timer=timer)

    def snail(event):
        timer.now += 0.2

    bus.attach(snail, name="snail")
    async with Agent(model=ScriptedModel([call("look", key="a")], "done"), tools=TOOLS, bus=bus) as agent:
        log = [event async for event in agent.stream("hello")]
    assert_laws(log)
    (named,) = [event for event in log if event.type is EventType.WARNING]
    assert (named.code, named.data["tap"]) == ("slow_tap", "snail")


async def test_a_tap_may_start_and_cancel_runs_from_within():
    async with Agent(model=ScriptedModel("one", "two", "three"), tools=TOOLS) as agent:
        started, order, others = [], [], []

        def meddle(event):
            order.append((event.run_id, event.seq))
            if event.type is EventType.MODEL_START and len(started) < 2:
                started.append(agent.start("again"))
            if event.type is EventType.INPUT and started and event.run_id == started[0].run_id:
                started[0].cancel()

        agent.bus.attach(meddle)
        agent.bus.attach(lambda event: others.append((event.run_id, event.seq)))
        await agent.chat("hello")
        ends = [await chain for chain in started]
        await turns()
        assert [end.type for end in ends] == [EventType.CANCELLED, EventType.FINAL]
        assert order == others
        for chain in started:
            log = await log_of(agent, chain.run_id)
            assert_laws(log)
            assert [seq for run_id, seq in order if run_id == chain.run_id] == [event.seq for event in log]


async def test_a_tap_that_always_raises_does_not_fail_a_run(caplog):
    def fragile(event):
        raise SystemExit

    async with Agent(model=ScriptedModel("hi")) as agent:
        agent.bus.attach(fragile)
        seen = []
        agent.events.subscribe(seen.append)
        with caplog.at_level(logging.CRITICAL, logger="agentflow.bus"):
            reply = await agent.chat("hello")
        assert reply.text == "hi"
        assert_laws(seen)


def test_an_observable_of_the_bus_can_be_filtered_and_never_completes():
    bus, texts, ended = EventBus(), [], []
    kinds = bus.events.filter(lambda event: event.type == EventType.DELTA)
    kinds.subscribe(lambda event: texts.append(event.text), ended.append, lambda: ended.append("completed"))
    bus.publish([delta("a"), warning(), delta("b")])
    assert (texts, ended) == (["a", "b"], [])
