import asyncio
import socket

import pytest

from agentflow.transports.auth import Caller
from agentflow.transports.connections import SEND_BUFFER, ConnectionEnded, Connections, hold_little
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


class Dialled(asyncio.Protocol):
    """The server's side of a connection, as a request has it."""

    transport = None

    def connection_made(self, transport):
        self.transport = transport


async def option_of_a_stream(stall, level, option, family=socket.AF_INET):
    near, far = socket.socketpair() if family == socket.AF_UNIX else tcp_pair()
    with far:
        transport, request = await asyncio.get_running_loop().connect_accepted_socket(Dialled, near)
        hold_little(request, stall)
        value = transport.get_extra_info("socket").getsockopt(level, option)
        transport.abort()
        await settled()
    return value


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        return listener.accept()[0], far


async def test_the_system_holds_little_for_the_client_of_a_stream():
    held = await option_of_a_stream(15.0, socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert SEND_BUFFER <= held <= 2 * SEND_BUFFER


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="TCP_USER_TIMEOUT is Linux's")
async def test_a_client_that_acknowledges_nothing_is_given_up_as_soon_as_one_that_takes_nothing():
    assert await option_of_a_stream(15.0, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
    assert await option_of_a_stream(0.0001, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1  # 0 would be for ever


async def test_what_is_no_connection_of_the_internet_is_left_alone():
    assert await option_of_a_stream(15.0, socket.SOL_SOCKET, socket.SO_SNDBUF, socket.AF_UNIX) > 2 * SEND_BUFFER
    gone = Request()
    gone.transport = None
    hold_little(gone, 15.0)
