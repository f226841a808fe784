import asyncio
import logging
import sys
import threading
import warnings

import aiohttp
import pytest

from agentflow.testing.leaks import LeakCheck, LeakError
from agentflow.testing.provider import FakeProvider, text


async def leaks(block, **options):
    """The message of the leak that `block` makes."""
    with pytest.raises(LeakError) as caught:
        async with LeakCheck(**options):
            await block()
    return str(caught.value)


async def test_a_block_that_closes_everything_is_fine():
    async with LeakCheck():
        async with (
            FakeProvider(text("a")) as provider,
            aiohttp.ClientSession() as session,
            session.post(f"{provider.base_url}/chat/completions", json={}) as response,
        ):
            await response.read()
        thread = threading.Thread(target=int)
        thread.start()


async def test_a_task_that_still_runs_is_named():
    tasks = []

    async def block():
        tasks.append(asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="forgotten"))

    assert "forgotten" in await leaks(block)
    tasks[0].cancel()


async def test_a_task_that_is_about_to_end_is_waited_for():
    async with LeakCheck():
        asyncio.get_running_loop().create_task(asyncio.sleep(0)).cancel()


@pytest.mark.parametrize("daemon", [True, False])
async def test_a_thread_that_still_runs_is_named_unless_threads_are_left_out(daemon, monkeypatch):
    monkeypatch.setattr("agentflow.testing.leaks._PATIENCE", 0.01)
    release = threading.Event()
    threads = []

    async def block():
        threads.append(threading.Thread(target=release.wait, name="forgotten", daemon=daemon))
        threads[-1].start()

    assert "forgotten" in await leaks(block)
    async with LeakCheck(threads=False):
        await block()
    release.set()
    for thread in threads:
        thread.join()


async def test_a_socket_that_is_open_is_named():
    writers = []
    async with FakeProvider() as provider:

        async def block():
            port = int(provider.base_url.split(":")[2].split("/")[0])
            writers.append((await asyncio.open_connection("127.0.0.1", port))[1])

        assert "socket:" in await leaks(block)
        writers[0].close()
        await writers[0].wait_closed()


async def test_a_coroutine_that_was_never_awaited_is_named():
    async def block():
        cycle = [asyncio.sleep(0)]
        cycle.append(cycle)

    assert "never awaited" in await leaks(block)


def test_a_coroutine_that_vanishes_unawaited_within_the_block_is_named():
    async def block():
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            asyncio.sleep(0)

    with pytest.warns(RuntimeWarning, match="never awaited"):
        message = asyncio.run(leaks(block))
    assert "never awaited" in message


def test_a_warning_that_became_an_error_nobody_could_catch_is_named(monkeypatch):
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: heard.append(str(unraisable.exc_value)))

    async def block():
        asyncio.sleep(0)

    assert "never awaited" in asyncio.run(leaks(block))
    assert len(heard) == 1


def test_an_exception_that_nobody_took_is_named():
    async def block():
        future = asyncio.get_running_loop().create_future()
        future.set_exception(ValueError("lost"))
        del future

    assert "never retrieved" in asyncio.run(leaks(block))


async def test_an_error_of_the_block_goes_first_and_other_log_lines_do_not_matter():
    with pytest.raises(ValueError, match="mine"):
        async with LeakCheck():
            logging.getLogger("asyncio").error("something else")
            raise ValueError("mine")
