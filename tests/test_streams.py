"""Tasks with an owner, bursts from threads, and the two ways over the bridge to Rx."""

import asyncio
import contextvars
import threading

import pytest
import reactivex
from reactivex.subject import Subject  # noqa: TID251  a source that tests push by hand

from agentflow.streams import Inbox, LoopClock, TaskOwner, iterate, observe, pump
from agentflow.testing.clock import START
from tests.builders import turns


class Errors:
    """What the loop's exception handler was told."""

    def __init__(self):
        self.told = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self.told.append(context))


# -- TaskOwner -------------------------------------------------------------------------------------------


async def test_an_owner_keeps_a_task_until_it_has_ended():
    owner = TaskOwner()
    task = owner.spawn(asyncio.sleep(0, "done"), name="t")
    assert len(owner) == 1
    assert await task == "done"
    await turns(2)
    assert len(owner) == 0


async def test_a_task_that_fails_is_reported_and_not_lost():
    async def fail():
        raise ValueError("lost?")

    errors, owner = Errors(), TaskOwner()
    owner.spawn(fail(), name="the failing one")
    await turns()
    (context,) = errors.told
    assert "'the failing one'" in context["message"]
    assert str(context["exception"]) == "lost?"


async def test_a_task_runs_in_the_context_it_is_given():
    variable = contextvars.ContextVar("variable", default="outside")
    context = contextvars.copy_context()
    context.run(variable.set, "inside")

    async def read():
        return variable.get()

    assert await TaskOwner().spawn(read(), name="t", context=context) == "inside"


@pytest.mark.virtual_time
async def test_closing_gives_a_second_to_clean_up_and_counts_who_does_not_end():
    release, cleaned = asyncio.Event(), []

    async def tidy():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.9)
            cleaned.append(True)

    async def stubborn():
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    owner = TaskOwner()
    for work in (tidy, stubborn):
        owner.spawn(work(), name=work.__name__)
    await turns(2)
    assert await owner.aclose() == 1
    assert (cleaned, owner.abandoned, asyncio.get_running_loop().time()) == ([True], 1, 1.0)
    release.set()
    await turns()
    assert len(owner) == 0


@pytest.mark.virtual_time
async def test_a_second_cancel_does_not_tear_a_task_out_of_its_clean_up():
    cleaned = []

    async def tidy():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)
            cleaned.append(True)

    owner = TaskOwner()
    owner.spawn(tidy(), name="tidy")
    await turns(2)
    owner.cancel()
    await turns(2)
    owner.cancel()
    await owner.aclose()
    assert cleaned == [True]


@pytest.mark.virtual_time
async def test_a_cancel_in_the_moment_a_time_limit_passes_is_not_lost():
    ended = []

    async def limited():
        try:
            async with asyncio.timeout(1.0):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    owner = TaskOwner()
    owner.spawn(limited(), name="limited")
    await turns(2)
    asyncio.get_running_loop().call_later(1.0, owner.cancel)
    await asyncio.sleep(1.5)
    assert (ended, len(owner)) == ([True], 0)


async def test_closing_from_within_a_task_does_not_wait_for_itself():
    owner = TaskOwner()

    async def close():
        return await owner.aclose()

    assert await owner.spawn(close(), name="closer") == 0


@pytest.mark.virtual_time
async def test_draining_waits_for_tasks_and_those_they_start_but_not_for_ever():
    owner = TaskOwner()

    async def first():
        await asyncio.sleep(1)
        owner.spawn(asyncio.sleep(1), name="second")

    owner.spawn(first(), name="first")
    await owner.drain(10.0)
    assert (len(owner), asyncio.get_running_loop().time()) == (0, 2.0)
    hung = owner.spawn(asyncio.sleep(100), name="hung")
    await owner.drain(5.0)
    assert (hung.done(), asyncio.get_running_loop().time()) == (False, 7.0)
    await owner.aclose()


# -- LoopClock -------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_the_loops_clock_is_the_loops():
    clock, rung = LoopClock(), []
    clock.call_later(2.0, lambda: rung.append(clock.monotonic()))
    clock.call_later(1.0, lambda: rung.append("taken back")).cancel()
    await asyncio.sleep(3)
    assert (rung, clock.wall()) == ([2.0], START + 3)


async def test_the_wall_clock_of_a_real_loop_is_the_systems():
    assert LoopClock().wall() > 1_700_000_000


# -- Inbox -----------------------------------------------------------------------------------------------


async def test_what_is_put_on_the_loops_thread_is_received_at_once():
    got = []
    inbox = Inbox(asyncio.get_running_loop(), got.append)
    inbox.put("a")
    assert got == ["a"]


async def test_bursts_from_many_threads_arrive_whole_each_in_its_order_on_the_loops_thread():
    got, places, all_in = [], set(), asyncio.Event()

    def receive(item):
        got.append(item)
        places.add(threading.current_thread())
        if len(got) == 8 * 500:
            all_in.set()

    inbox = Inbox(asyncio.get_running_loop(), receive)
    threads = [threading.Thread(target=lambda n=n: [inbox.put((n, i)) for i in range(500)]) for n in range(8)]
    for thread in threads:
        thread.start()
    await all_in.wait()
    for thread in threads:
        thread.join()
    assert places == {threading.current_thread()}
    for number in range(8):
        assert [i for n, i in got if n == number] == list(range(500))


async def test_a_burst_wakes_the_loop_once():
    loop, got, wakes = asyncio.get_running_loop(), [], []

    class Counting:
        def call_soon_threadsafe(self, callback):
            wakes.append(callback)
            loop.call_soon_threadsafe(callback)

    inbox = Inbox(Counting(), got.append)
    for number in range(100):
        inbox.put(number)
    await turns(3)
    assert (got, len(wakes)) == (list(range(100)), 1)


async def test_an_item_waits_behind_those_that_still_wait():
    got = []
    inbox = Inbox(asyncio.get_running_loop(), got.append)
    thread = threading.Thread(target=inbox.put, args=("first",))
    thread.start()
    thread.join()
    inbox.put("second")
    assert got == []
    await turns(2)
    assert got == ["first", "second"]


def test_after_its_loop_an_inbox_drops_and_counts():
    loop = asyncio.new_event_loop()
    inbox = Inbox(loop, pytest.fail)
    loop.close()
    inbox.put("a")
    inbox.put("b")
    assert inbox.dropped == 2


# -- observe and pump ------------------------------------------------------------------------------------


class Source:
    """An async generator that tells when it is closed."""

    def __init__(self, items=10, error=None):
        self.made, self.given, self.closed, self.items, self.error = 0, 0, 0, items, error

    async def __call__(self):
        self.made += 1
        try:
            for number in range(self.items):
                await asyncio.sleep(0)
                self.given += 1
                yield number
            if self.error:
                raise self.error
        finally:
            await asyncio.sleep(0)  # as one that closes a connection
            self.closed += 1


async def test_an_iterator_is_observed_whole_once_per_subscription():
    owner, source = TaskOwner(), Source(3)
    one, two = [], []
    numbers = observe(source, owner)
    assert source.made == 0  # cold
    numbers.subscribe(one.append, on_completed=lambda: one.append("end"))
    numbers.subscribe(two.append, on_completed=lambda: two.append("end"))
    await owner.drain(5)
    assert one == two == [0, 1, 2, "end"]
    assert (source.made, source.closed) == (2, 2)


async def test_take_closes_the_generator_and_takes_no_more():
    owner, source, got = TaskOwner(), Source(), []
    observe(source, owner).take(3).subscribe(got.append)
    await owner.drain(5)
    assert (got, source.given, source.closed, len(owner)) == ([0, 1, 2], 3, 1, 0)


async def test_disposing_while_it_waits_closes_the_generator():
    owner, source, got = TaskOwner(), Source(1000), []
    subscription = observe(source, owner).subscribe(got.append)
    await turns(10)
    subscription.dispose()
    seen = len(got)
    await owner.drain(5)
    assert (source.closed, len(got), len(owner)) == (1, seen, 0)


async def test_disposing_again_does_not_tear_the_generator_out_of_its_clean_up():
    owner, source = TaskOwner(), Source()
    subscription = observe(source, owner).take(1).subscribe(lambda item: None)
    await turns(2)
    assert (source.given, source.closed) == (1, 0)
    subscription.dispose()
    subscription.dispose()
    await owner.drain(5)
    assert source.closed == 1


async def test_disposing_before_the_first_step_starts_nothing():
    owner, source = TaskOwner(), Source()
    observe(source, owner).subscribe(pytest.fail).dispose()
    await turns()
    assert (source.closed, len(owner)) == (0, 0)


async def test_an_error_of_the_iterator_is_the_end():
    owner, errors = TaskOwner(), []
    observe(Source(2, ValueError("broken")), owner).subscribe(lambda item: None, errors.append)
    await owner.drain(5)
    assert [str(error) for error in errors] == ["broken"]


async def test_an_observer_that_raises_gets_on_error_and_nothing_more():
    owner, source, got = TaskOwner(), Source(), []

    def fragile(item):
        got.append(item)
        raise ValueError("cannot")

    observe(source, owner).subscribe(fragile, lambda error: got.append(str(error)))
    await owner.drain(5)
    assert (got, source.closed) == ([0, "cannot"], 1)


async def test_an_observer_that_raises_in_its_last_call_is_reported():
    def broken():
        raise ValueError("at the end")

    errors, owner = Errors(), TaskOwner()
    observe(Source(1), owner).subscribe(lambda item: None, on_completed=broken)
    await owner.drain(5)
    assert [str(context["exception"]) for context in errors.told] == ["at the end"]


async def test_a_pump_takes_any_iterator_and_anything_with_the_three_methods():
    class Plain:
        def __init__(self):
            self.left = [1, 2]

        def __aiter__(self):
            return self

        async def __anext__(self):
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    class Sink:
        def __init__(self):
            self.got = []

        def on_next(self, value):
            self.got.append(value)

        def on_error(self, error):
            self.got.append(error)

        def on_completed(self):
            self.got.append("end")

    owner = TaskOwner()
    sink = Sink()
    pump(Plain(), sink, owner, name="p")
    await owner.drain(5)
    assert sink.got == [1, 2, "end"]


# -- iterate ---------------------------------------------------------------------------------------------


async def test_an_observable_is_iterated_to_its_end_or_error():
    assert [item async for item in iterate(reactivex.from_iterable(range(5)))] == list(range(5))
    failing = reactivex.concat(reactivex.of(1), reactivex.throw(ValueError("broken")))
    got = []
    with pytest.raises(ValueError, match="broken"):
        async for item in iterate(failing):
            got.append(item)  # noqa: PERF401  what came before the error counts
    assert got == [1]


async def test_leaving_an_iteration_disposes_the_subscription():
    subject = Subject()
    items = iterate(subject)
    asyncio.get_running_loop().call_soon(subject.on_next, 1)
    assert await anext(items) == 1
    assert len(subject.observers) == 1
    await items.aclose()
    assert len(subject.observers) == 0


async def test_an_observable_far_ahead_of_its_reader_is_an_error_after_what_it_gave():
    got = []
    with pytest.raises(OverflowError, match="4 items ahead"):
        async for item in iterate(reactivex.from_iterable(range(100)), capacity=4):
            got.append(item)  # noqa: PERF401  what came before the error counts
    assert got == [0, 1, 2, 3]


async def test_items_pushed_from_a_thread_are_iterated():
    subject = Subject()

    def push():
        for number in range(200):
            subject.on_next(number)
        subject.on_completed()

    items = iterate(subject)
    thread = threading.Thread(target=push)
    asyncio.get_running_loop().call_soon(thread.start)
    assert [item async for item in items] == list(range(200))
    thread.join()
