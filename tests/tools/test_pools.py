"""Thread pools: bounds, context, contained errors, calls that are left, and closing."""

import asyncio
import contextvars
import gc
import threading
import weakref

import pytest

from agentflow.errors import ConfigError, ToolFailedError
from agentflow.tools.pools import Pools, ThreadPool

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

        assert (pool.busy, pool.queued) == (2, 2)
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

    assert (pool.abandoned, pool.busy, ThreadPool.open_jobs()) == (1, 1, 0)
    gate.open()
    await until(lambda: pool.late == 1)
    assert (pool.abandoned, pool.busy) == (0, 0)


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
