import asyncio
import socket
import threading
import time

import pytest

from agentflow.streams import LoopClock
from agentflow.testing.clock import START, DeadlockError, VirtualTimeLoop, run_virtual
from agentflow.tools.pools import ThreadPool


@pytest.mark.virtual_time
async def test_the_marker_gives_a_test_the_virtual_loop():
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


async def test_other_tests_run_in_a_real_loop():
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


@pytest.mark.virtual_time
async def test_a_day_passes_at_once_and_timers_fire_in_order():
    loop = asyncio.get_running_loop()
    fired = []
    for delay in (86_400, 0.2, 3_600, 0.1):
        loop.call_later(delay, lambda delay=delay: fired.append((delay, loop.time())))
    before = time.monotonic()
    await asyncio.sleep(100_000)
    assert fired == [(0.1, 0.1), (0.2, 0.2), (3_600, 3_600), (86_400, 86_400)]
    assert time.monotonic() - before < 60


@pytest.mark.virtual_time
async def test_what_is_ready_runs_before_time_moves():
    loop = asyncio.get_running_loop()
    times = []

    async def steps():
        for _ in range(100):
            await asyncio.sleep(0)
            times.append(loop.time())

    await asyncio.gather(steps(), asyncio.sleep(1))
    assert set(times) == {0.0}


@pytest.mark.virtual_time
async def test_the_wall_clock_of_the_streams_follows():
    clock = LoopClock()
    assert (clock.monotonic(), clock.wall()) == (0.0, START)
    await asyncio.sleep(0.25)
    assert (clock.monotonic(), clock.wall()) == (0.25, START + 0.25)


@pytest.mark.virtual_time
async def test_timers_of_odd_lengths_fire_when_time_is_rounded():
    for part in (1 / 3, 1e-10, 0.1 + 0.2, 1e6 / 7):
        await asyncio.sleep(part)


@pytest.mark.virtual_time
async def test_a_timeout_comes_after_its_time():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await asyncio.Event().wait()
    assert asyncio.get_running_loop().time() == 30


@pytest.mark.virtual_time
async def test_bytes_over_a_real_socket_come_before_a_timer():
    arrived = asyncio.Event()

    async def serve(reader, writer):
        await reader.readexactly(1)
        arrived.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"x")
    async with asyncio.timeout(0.001):
        await arrived.wait()
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


@pytest.mark.virtual_time
async def test_time_stands_still_while_a_thread_works():
    loop = asyncio.get_running_loop()
    release = threading.Event()
    loop.call_later(5, release.set)  # would let the job end, but must not come
    threading.Timer(0.02, release.set).start()
    await loop.run_in_executor(None, release.wait)
    assert loop.time() == 0


@pytest.mark.virtual_time
async def test_advance_moves_time_past_a_thread_that_hangs():
    loop = asyncio.get_running_loop()
    release = threading.Event()
    fired = []
    job = loop.run_in_executor(None, release.wait)
    loop.call_later(3, lambda: fired.append(loop.time()))
    loop.call_later(11, lambda: fired.append(loop.time()))
    await loop.advance(10)
    assert (fired, loop.time()) == ([3], 10)
    release.set()
    await job
    assert loop.time() == 10


def test_a_deadlock_names_the_tasks_and_where_they_wait():
    async def main():
        await asyncio.Event().wait()

    with (
        pytest.raises(DeadlockError, match=r"no timer is due(.|\n)*test_clock.py:\d+"),
        asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(patience=0.05)) as runner,
    ):
        runner.run(main())


def test_a_job_that_never_ends_is_a_deadlock_too():
    release = threading.Event()

    async def main():
        job = asyncio.get_running_loop().run_in_executor(None, release.wait)
        try:
            await asyncio.wait_for(job, 5)
        finally:
            release.set()

    with (
        pytest.raises(DeadlockError, match="1 jobs in threads are open"),
        asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(patience=0.1)) as runner,
    ):
        runner.run(main())


def test_run_virtual_gives_the_result():
    async def main():
        await asyncio.sleep(1000)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 1000


@pytest.mark.virtual_time
async def test_a_name_is_looked_up_while_time_stands_still():
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(0.001):
        assert await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)


@pytest.mark.virtual_time
async def test_time_stands_still_while_a_job_of_a_tool_pool_is_open():
    loop = asyncio.get_running_loop()
    pool = ThreadPool("test")
    release = threading.Event()
    loop.call_later(5, release.set)  # would let the job end, but must not come
    threading.Timer(0.02, release.set).start()
    await pool.run(release.wait)
    assert loop.time() == 0
    pool.close()


@pytest.mark.virtual_time
async def test_a_time_limit_of_a_tool_that_hangs_passes_by_advance():
    loop = asyncio.get_running_loop()
    pool = ThreadPool("test")
    release = threading.Event()
    job = asyncio.gather(asyncio.wait_for(pool.run(release.wait), 30), return_exceptions=True)
    await loop.advance(31)
    assert (loop.time(), isinstance((await job)[0], TimeoutError)) == (31, True)
    release.set()
    pool.close()


@pytest.mark.virtual_time
async def test_time_waits_for_what_comes_late_over_a_socket_when_it_is_told_to():
    loop = asyncio.get_running_loop()
    loop.settle(5.0)
    near, far = socket.socketpair()
    near.setblocking(False)
    timer = threading.Timer(0.05, far.send, [b"x"])
    timer.start()
    try:
        receiving = asyncio.ensure_future(loop.sock_recv(near, 1))  # noqa: TID251  beside a timer that is due long after
        done, _ = await asyncio.wait([receiving], timeout=60)
        assert [task.result() for task in done] == [b"x"]
        assert loop.time() == 0.0
    finally:
        timer.join()
        near.close()
        far.close()
