"""Who holds the loop is named; who holds nothing is left alone."""

import threading

import pytest

from agentflow import Agent, tool
from agentflow.observability import loop_lag
from agentflow.observability.loop_lag import LoopWatch
from agentflow.testing import ScriptedModel, call
from tests.builders import begin, of
from tests.transports.served import HandClock


class Watched:
    """A watch over a loop whose time is moved by hand; `thread` off: the test looks itself."""

    def __init__(self):
        self.clock = HandClock()
        self.busy = True
        self.lags, self.reports = [], []
        self.watch = LoopWatch(
            lambda: self.busy,
            self.lags.append,
            lambda message, data: self.reports.append((message, data)),
            clock=self.clock,
            now=self.clock.monotonic,
        )


@pytest.fixture
async def watched():
    here = Watched()
    yield here
    here.watch.close()


async def test_every_beat_tells_how_late_it_is(watched):
    watched.watch.see(begin())
    watched.clock.advance(0.1)
    watched.clock.advance(0.15)
    assert watched.lags == pytest.approx([0.0, 0.05])
    assert watched.reports == []


async def test_an_idle_loop_has_no_timer_until_something_happens_again(watched):
    watched.watch.see(begin())
    watched.busy = False
    watched.clock.advance(0.1)
    watched.clock.advance(5)
    assert len(watched.lags) == 1
    watched.busy = True
    watched.watch.see(begin())
    watched.clock.advance(0.1)
    assert len(watched.lags) == 2


async def test_a_late_beat_is_reported_and_the_next_ones_are_not_for_a_while(watched, caplog):
    watched.watch.see(begin())
    for late in (0.4, 0.4, 11, 0.4):
        watched.clock.advance(late)
    assert [data["milliseconds"] for _, data in watched.reports] == [300.0, 10900.0]
    assert "came 300.0 ms late" in caplog.text


async def test_what_the_loop_does_meanwhile_is_named_to_runs_and_shown_in_the_log(watched, caplog):
    def computes_for_long():
        watched.clock.now += 0.4
        seen_from_elsewhere = threading.Thread(target=watched.watch.look)
        seen_from_elsewhere.start()
        seen_from_elsewhere.join()

    watched.watch.see(begin())
    computes_for_long()
    watched.clock.advance(0)
    ((message, data),) = watched.reports
    assert "computes_for_long" in data["held_by"] or "computes_for_long" in caplog.text
    assert data.keys() == {"milliseconds", "held_by"}
    assert "/" not in message
    assert __file__ in caplog.text


async def test_a_tool_that_blocks_the_loop_is_named_in_the_run(caplog):
    watches = []

    @tool
    async def blocking() -> str:
        """Blocks the loop until the watch has seen it."""
        while watches[0]._held is None:
            pass
        return "at last"

    async with Agent(model=ScriptedModel([call("blocking")], "done"), tools=[blocking]) as agent:

        def report(message, data):
            for chain in agent.live():
                chain.warn("loop_lag", message, data)

        watch = LoopWatch(lambda: any(agent.live()), lambda _: None, report)
        watches.append(watch)
        agent.bus.attach(watch.see)
        log = [event async for event in agent.stream("hi")]
        watch.close()
    (warning,) = of(log, "warning")
    assert warning.code == "loop_lag"
    assert warning.data["held_by"] == "blocking"
    assert "in the task 'body of tool blocking'" in caplog.text


async def test_after_the_end_nothing_is_begun(watched):
    watched.watch.close()
    watched.watch.see(begin())
    watched.clock.advance(1)
    assert watched.lags == []


def test_the_threshold_is_what_is_promised():
    assert loop_lag.THRESHOLD == 0.25
