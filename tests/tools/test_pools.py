"""Thread pools: bounds, context, contained errors, calls that are left, hung threads, figures, and closing."""

import asyncio
import contextvars
import gc
import random
import threading
import weakref

import pytest

from agentflow.errors import ConfigError, ToolFailedError
from agentflow.tools.pools import Pools, PoolStats, ThreadPool

variable = contextvars.ContextVar("variable", default="unset")


class Gate:
    """A call that says when it has begun and ends when it is told to."""

    def __init__(self):
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()
        self._go = threading.Event()

    def __call__(self):
        self._loop.call_soon_threadsafe(self._begun.set)
        self._go.wait()
        return "late"

    async def begun(self):
        await self._begun.wait()

    def open(self):
        self._go.set()


async def until(condition):
    while not condition():  # noqa: ASYNC110  what threads do sets no asyncio.Event
        await asyncio.sleep(0)


def start(coroutine):
    return asyncio.get_running_loop().create_task(coroutine)


async def leave(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def hang(pool, count, name=""):
    """The gates of `count` calls that were left while they ran."""
    gates = [Gate() for _ in range(count)]
    for gate in gates:
        task = start(pool.run(gate, name=name))
        await gate.begun()
        await leave(task)
    return gates


async def end(pool, gates):
    late = pool.late + len(gates)
    for gate in gates:
        gate.open()
    await until(lambda: pool.late == late)


@pytest.fixture
def pool():
    made = ThreadPool("test", size=2, queue=2)
    yield made
    made.close()


def names():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("agentflow-test")]


async def test_a_call_runs_in_a_daemon_thread_of_the_pool(pool):
    thread = (await pool.run(threading.current_thread)).value

    assert thread is not threading.current_thread()
    assert thread.daemon
    assert thread.name.startswith("agentflow-test")


async def test_threads_are_started_on_demand_and_used_again(pool):
    assert names() == []
    first = (await pool.run(threading.current_thread)).value
    second = (await pool.run(threading.current_thread)).value

    assert first is second


async def test_a_call_sees_the_context_of_its_caller_and_cannot_change_it(pool):
    variable.set("mine")

    def call():
        seen = variable.get()
        variable.set("changed")
        return seen

    assert (await pool.run(call)).value == "mine"
    assert variable.get() == "mine"
    assert (await pool.run(call)).value == "mine"


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), StopIteration(1), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_call_raises_is_a_value(pool, error):
    def call():
        raise error

    assert (await pool.run(call)).error is error
    assert (await pool.run(lambda: 1)).value == 1


async def test_calls_beyond_the_threads_wait_and_beyond_the_queue_are_refused(pool):
    gates = [Gate() for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(pool.run(gate)) for gate in gates]
        await gates[0].begun()
        await gates[1].begun()

        assert (pool.stats().busy, pool.queued) == (2, 2)
        assert ThreadPool.open_jobs() == 4
        with pytest.raises(ToolFailedError, match="'test' is saturated: 2 threads are busy and 2 calls wait"):
            await pool.run(lambda: 1)
        for gate in gates:
            gate.open()

    assert [task.result().value for task in tasks] == ["late"] * 4
    assert ThreadPool.open_jobs() == 0
    assert len(names()) == 2


async def test_a_call_left_while_it_runs_is_abandoned_and_its_result_dropped(pool):
    gate = Gate()
    task = asyncio.get_running_loop().create_task(pool.run(gate))
    await gate.begun()
    assert ThreadPool.open_jobs() == 1

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (pool.abandoned, pool.left, pool.stats().busy, ThreadPool.open_jobs()) == (1, 1, 0, 0)
    gate.open()
    await until(lambda: pool.late == 1)
    assert (pool.abandoned, pool.left) == (0, 1)


async def test_a_call_left_while_it_waits_is_never_run(pool):
    gates = [Gate(), Gate()]
    ran = []
    async with asyncio.TaskGroup() as group:
        for gate in gates:
            group.create_task(pool.run(gate))
            await gate.begun()
        waiting = group.create_task(pool.run(lambda: ran.append(1)))
        await until(lambda: pool.queued == 1)
        waiting.cancel()
        await until(waiting.done)
        assert (pool.queued, pool.abandoned) == (0, 0)
        for gate in gates:
            gate.open()

    assert ran == []


async def test_a_coroutine_that_comes_too_late_is_closed(pool):
    async def body():
        raise AssertionError("never runs")

    gate = Gate()
    task = asyncio.get_running_loop().create_task(pool.run(lambda: gate() and body()))
    await gate.begun()
    task.cancel()
    await until(task.done)
    gate.open()

    await until(lambda: pool.late == 1)


async def test_an_idle_thread_keeps_nothing_of_its_last_call(pool):
    class Big:
        pass

    def call():
        return Big()

    kept = weakref.ref((await pool.run(call)).value)
    await pool.run(lambda: None)
    gc.collect()

    assert kept() is None


async def test_close_ends_idle_threads_and_refuses_new_calls(pool):
    await pool.run(lambda: 1)
    pool.close()
    pool.close()

    assert names() == []
    with pytest.raises(ToolFailedError, match="'test' is closed"):
        await pool.run(lambda: 1)


async def test_close_does_not_wait_for_a_hung_call_and_ends_those_that_wait(pool):
    gates = [Gate(), Gate()]
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(pool.run(gate)) for gate in gates]
    for gate in gates:
        await gate.begun()
    waiting = loop.create_task(pool.run(lambda: 1))
    await until(lambda: pool.queued == 1)

    pool.close()

    assert isinstance((await waiting).error, ToolFailedError)
    for gate in gates:
        gate.open()
    assert [(await task).value for task in tasks] == ["late", "late"]
    await until(lambda: names() == [])


# Threads that hang


async def test_an_abandoned_thread_takes_no_place(pool):
    gates = await hang(pool, 2)
    both = [Gate(), Gate()]
    tasks = [start(pool.run(gate)) for gate in both]
    for gate in both:
        await gate.begun()

    stats = pool.stats()
    assert (stats.busy, stats.abandoned, stats.replaced, stats.left) == (2, 2, 2, 2)
    for gate in both:
        gate.open()
    assert [(await task).value for task in tasks] == ["late", "late"]
    await end(pool, gates)


async def test_calls_that_wait_behind_a_thread_get_another_one_as_soon_as_it_is_abandoned(pool):
    gates = [Gate(), Gate()]
    hung = [start(pool.run(gate)) for gate in gates]
    for gate in gates:
        await gate.begun()
    waiting = [start(pool.run(lambda number=number: number)) for number in range(2)]
    await until(lambda: pool.queued == 2)
    await leave(hung[0])

    assert [(await task).value for task in waiting] == [0, 1]
    assert pool.stats().replaced == 1
    await leave(hung[1])
    assert pool.stats().replaced == 1, "nobody waits for another thread"
    await end(pool, gates)


async def test_a_thread_that_comes_back_when_its_place_is_taken_goes_away(pool):
    gates = await hang(pool, 4)
    both = [Gate(), Gate()]
    tasks = [start(pool.run(gate)) for gate in both]
    for gate in both:
        await gate.begun()
    assert len(names()) == 6

    await end(pool, gates)
    await until(lambda: len(names()) == 2)
    for gate in both:
        gate.open()
    await asyncio.gather(*tasks)
    assert len({(await pool.run(threading.current_thread)).value for _ in range(20)}) <= 2
    assert (len(names()), pool.stats().replaced) == (2, 4)


async def test_a_thread_that_comes_back_when_its_place_is_free_is_used_again(pool):
    first = (await pool.run(threading.current_thread)).value
    await end(pool, await hang(pool, 1))

    assert (await pool.run(threading.current_thread)).value is first
    assert (len(names()), pool.stats().replaced) == (1, 0)


async def test_hung_threads_beyond_those_that_are_replaced_cost_a_place_each_until_they_end(pool):
    gates = await hang(pool, 5, "look")
    last, waiting = Gate(), Gate()
    tasks = [start(pool.run(last, name="fetch")), start(pool.run(waiting))]
    await last.begun()
    assert pool.queued == 1, "one of two places is left"
    waiting.open()
    await leave(tasks[0])

    assert len(names()) == 6
    with pytest.raises(
        ToolFailedError, match=r"'test' is saturated: 0 threads are busy and 1 calls wait; 6 threads"
    ) as told:
        await pool.run(lambda: 1)
    assert "hang in calls that were given up: look (5), fetch (1); try again later" in str(told.value)
    await end(pool, [last])
    assert (await tasks[1]).value == "late"
    assert (await pool.run(lambda: 1)).value == 1
    await end(pool, gates)


async def test_a_saturated_pool_tells_of_calls_that_hang_without_a_name_too(pool):
    gates = await hang(pool, 6)

    with pytest.raises(ToolFailedError, match="6 threads hang in calls that were given up: calls without a name"):
        await pool.run(lambda: 1)
    await end(pool, gates)


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_hangs_and_ends_no_more_than_size_threads_take_work_and_no_call_is_lost(seed):
    chance = random.Random(seed)
    pool = ThreadPool("test", size=3, queue=100)
    gates, running, left = [], {}, 0

    def check():
        stats = pool.stats()
        assert stats.busy <= 3
        assert stats.busy + stats.abandoned <= 9
        assert len(names()) <= 9

    for _ in range(150):
        if chance.random() < 0.5 and len(gates) < 30:
            gate = Gate()
            gates.append(gate)
            running[gate] = start(pool.run(gate))
        elif gates:
            gate = chance.choice(gates)
            if chance.random() < 0.4 and gate in running and pool.abandoned < 8:
                await leave(running.pop(gate))
                left += 1
            else:
                gate.open()
                gates.remove(gate)
        await asyncio.sleep(0)
        check()
    for gate in gates:
        gate.open()
    ended = [(await task).value for task in running.values()]
    await until(lambda: pool.abandoned == 0 and pool.stats().busy == 0)

    assert ended == ["late"] * len(running)
    assert pool.stats().calls == len(running) + left
    await until(lambda: len(names()) <= 3)
    pool.close()
    assert names() == []


@pytest.fixture
def no_more_threads():
    """The system refuses every new thread: no process has room for such a stack."""
    before = threading.stack_size()
    yield lambda: threading.stack_size(1 << 47)
    threading.stack_size(before)


async def test_a_system_that_gives_no_threads_is_an_error_at_once(pool, no_more_threads):
    no_more_threads()

    with pytest.raises(ToolFailedError, match="'test': the system gives no more threads"):
        await pool.run(lambda: 1)
    assert (pool.stats().calls, pool.queued, ThreadPool.open_jobs()) == (0, 0, 0)


async def test_a_thread_that_cannot_be_replaced_serves_those_who_wait_when_it_comes_back(pool, no_more_threads, caplog):
    gates = [Gate(), Gate()]
    hung = [start(pool.run(gate)) for gate in gates]
    for gate in gates:
        await gate.begun()
    waiting = start(pool.run(lambda: 1))
    await until(lambda: pool.queued == 1)
    no_more_threads()
    for task in hung:
        await leave(task)

    assert "is not replaced: pool 'test': the system gives no more threads; 2 threads hang" in caplog.text
    await end(pool, gates)
    assert (await waiting).value == 1


# Figures


async def test_a_pool_tells_how_many_calls_wait_and_for_how_long():
    seconds = [10.0]
    pool = ThreadPool("test", size=1, queue=5, now=lambda: seconds[0])
    assert pool.stats() == PoolStats(
        name="test",
        size=1,
        busy=0,
        abandoned=0,
        queued=0,
        longest_wait=0.0,
        calls=0,
        waited=0.0,
        left=0,
        late=0,
        replaced=0,
    )
    gate = Gate()
    tasks = [start(pool.run(gate))]
    await gate.begun()
    tasks.append(start(pool.run(lambda: 1)))
    await until(lambda: pool.queued == 1)
    seconds[0] += 2.0
    given_up = start(pool.run(lambda: 1))
    await until(lambda: pool.queued == 2)
    seconds[0] += 3.0

    stats = pool.stats()
    assert (stats.busy, stats.queued, stats.longest_wait, stats.calls, stats.waited) == (1, 2, 5.0, 3, 0.0)
    await leave(given_up)
    assert pool.stats().waited == 3.0
    gate.open()
    await asyncio.gather(*tasks)
    stats = pool.stats()
    assert (stats.busy, stats.queued, stats.longest_wait, stats.calls, stats.waited) == (0, 0, 0.0, 3, 8.0)
    pool.close()


async def test_the_wait_of_calls_that_a_closed_pool_never_began_is_counted():
    seconds = [0.0]
    pool = ThreadPool("test", size=1, queue=5, now=lambda: seconds[0])
    gate = Gate()
    running = start(pool.run(gate))
    await gate.begun()
    waiting = start(pool.run(lambda: 1))
    await until(lambda: pool.queued == 1)
    seconds[0] += 4.0
    pool.close()

    assert isinstance((await waiting).error, ToolFailedError)
    assert (pool.stats().queued, pool.stats().waited) == (0, 4.0)
    gate.open()
    await running
    await until(lambda: names() == [])


@pytest.mark.parametrize(("size", "queue"), [(0, 1), (1, -1)])
def test_a_pool_without_threads_is_refused(size, queue):
    with pytest.raises(ConfigError, match="pool 'x'"):
        ThreadPool("x", size=size, queue=queue)


def test_pools_are_made_by_name_when_first_used():
    pools = Pools({"slow": (1, 0)})

    assert pools.get("slow") is pools.get("slow")
    assert pools.get("default").name == "default"
    with pytest.raises(ConfigError, match="unknown thread pool 'fast'; configured are default, slow"):
        pools.get("fast")
    pools.close()


async def test_the_figures_of_all_pools_that_were_used_are_there_together():
    pools = Pools({"slow": (1, 0), "unused": (1, 0)})
    await pools.get("slow").run(lambda: 1)
    await pools.get("default").run(lambda: 1)

    assert [(stats.name, stats.size, stats.calls) for stats in pools.stats()] == [
        ("slow", 1, 1),
        ("default", 64, 1),
        ("encoding", 2, 0),
    ]
    pools.close()


def test_the_name_of_the_frameworks_own_pool_cannot_be_taken():
    with pytest.raises(ConfigError, match="the pool 'encoding' is the framework's own"):
        Pools({"encoding": (1, 1)})
