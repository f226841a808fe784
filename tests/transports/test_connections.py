import asyncio

import pytest

from agentflow.transports.auth import Caller
from agentflow.transports.connections import ConnectionEnded, Connections
from tests.transports.served import settled


class Request:
    """The part of a request that a connection looks at."""

    transport = object()


async def never():
    await asyncio.Event().wait()


async def value():
    return 5


@pytest.mark.virtual_time
async def test_a_step_is_begun_again_after_each_sign_of_life():
    signs = []

    async def idle():
        signs.append(asyncio.get_running_loop().time())

    async def step():
        if len(signs) < 3:
            await never()
        return "done"

    with Connections().open(Request(), Caller(), 15.0) as connection:
        assert await connection.wait(step, idle) == "done"
    assert signs == [15.0, 30.0, 45.0]


@pytest.mark.virtual_time
async def test_a_client_that_has_gone_is_not_waited_for():
    request = Request()
    with Connections().open(request, Caller(), 15.0) as connection:
        request.transport = None
        with pytest.raises(ConnectionResetError):
            await connection.wait(value)

        async def leave():
            request.transport = None

        request.transport = object()
        with pytest.raises(ConnectionResetError):
            await connection.wait(never, leave)


@pytest.mark.virtual_time
async def test_the_errors_of_a_step_are_its_own():
    async def slow():
        raise TimeoutError("the store's")

    connections = Connections()
    with connections.open(Request(), Caller(), 15.0) as connection, pytest.raises(TimeoutError, match="the store's"):
        await connection.wait(slow)


async def test_what_is_open_can_be_ended_by_whose_it_is():
    connections = Connections()
    tasks = {}
    async with asyncio.TaskGroup() as group:
        for key_id in ("a", "b", None):

            async def handle(key_id=key_id):
                with connections.open(Request(), Caller("u", key_id), 60.0) as connection:
                    await connection.wait(never)

            async def checked(handle=handle):
                with pytest.raises(ConnectionEnded):
                    await handle()

            tasks[key_id] = group.create_task(checked())
        await settled()
        assert len(connections) == 3
        connections.end(frozenset({"a"}))
        await tasks["a"]
        assert len(connections) == 2
        connections.end()
        await connections.closed()
    assert len(connections) == 0


async def test_one_that_is_ended_while_it_does_not_wait_notices_when_it_does():
    with Connections().open(Request(), Caller(), 60.0) as connection:
        connection.end()
        with pytest.raises(ConnectionEnded):
            await connection.wait(value)
