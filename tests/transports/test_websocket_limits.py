"""Who is let in to the WebSocket, for how long, and with how much."""

import asyncio

import pytest

from agentflow import Agent
from agentflow.events import EventType
from agentflow.transports.app import drain
from agentflow.transports.server import SERVER
from agentflow.transports.websocket import BURST, MAX_SOCKETS
from tests.transports.served import Gate, HandClock, served, settled
from tests.transports.sockets import PATH, Client, connected
from tests.transports.test_auth import bearer, made

pytestmark = pytest.mark.virtual_time


async def test_nobody_connects_without_a_key_where_there_are_keys():
    key, keys = made("ann")
    async with served(keys=keys) as here:
        for headers in ({}, bearer("wrong"), {"Authorization": "Basic x"}):
            async with here.get(PATH, headers=headers | {"Connection": "Upgrade", "Upgrade": "websocket"}) as response:
                assert response.status == 401
        async with connected(here, headers=bearer(key)) as client:
            found = await client.ended(await client.accepted("run", input="hello"))
            assert found[0].user_id == "ann"
            assert (await client.refused("run", input="hello", user_id="bob"))["kind"] == "forbidden"


async def test_a_browser_connects_with_a_ticket_once():
    key, keys = made("ann")
    async with served(keys=keys) as here:
        _, issued = await here.posted("/api/tickets", {}, headers=bearer(key))
        path = f"{PATH}?ticket={issued['ticket']}"
        async with connected(here, path) as client:
            assert (await client.ended(await client.accepted("run", input="hello")))[0].user_id == "ann"
        status, _ = await here.json(path)
        assert status == 401


async def test_a_key_that_is_revoked_ends_what_it_has_open():
    (key, keys), (other, more) = made("ann"), made("bob")
    async with (
        served(Agent(model=Gate()), keys=keys | more) as here,
        connected(here, headers=bearer(key)) as client,
        connected(here, headers=bearer(other)) as neighbour,
    ):
        await client.accepted("run", input="hello")
        await client.until("delta")
        here.server.replace_keys(here.server.settings.server.model_validate({"keys": more}).keys)
        await client.send("run", input="hello")
        assert await client.closed() == (1008, "the key is good no more")
        assert len(here.server.presence) == 1
        await neighbour.accepted("run", input="hello")


async def test_a_user_has_so_many_sockets_and_no_more():
    async with served() as here:
        clients = [await here.client.ws_connect(f"{here.base}{PATH}?user_id=ann") for _ in range(MAX_SOCKETS)]
        status, body = await here.json(f"{PATH}?user_id=ann")
        assert (status, body["error"]["kind"]) == (429, "limit")
        async with connected(here, f"{PATH}?userId=bob") as client:
            await client.ended(await client.accepted("run", input="hello"))
        await clients[0].close()
        await Client(clients[1]).drop()
        await settled()
        clients += [await here.client.ws_connect(f"{here.base}{PATH}?user_id=ann") for _ in range(2)]
        for client in clients:
            await client.close()
        await settled()
        assert not here.server.connections.sockets
        assert len(here.server.connections) == 0


async def test_who_sends_too_much_is_closed():
    clock = HandClock()
    async with served(clock=clock) as here, connected(here) as client:
        for _ in range(int(BURST)):
            assert (await client.refused("follow", run_id="r"))["kind"] == "run_not_found"
        clock.advance(1)
        for _ in range(20):
            await client.refused("follow", run_id="r")
        await client.send("follow", run_id="r")
        assert await client.closed() == (1008, "over 20 messages a second")


async def test_a_stranger_that_asks_for_nothing_is_closed():
    async with served() as here, connected(here) as client:
        assert await client.closed() == (1000, "nothing was asked for 60 s")
        assert asyncio.get_running_loop().time() == pytest.approx(60, abs=1)


async def test_a_stranger_that_follows_a_run_stays_as_long_as_it_lasts():
    model = Gate()
    async with served(Agent(model=model)) as here, connected(here) as client:
        run_id = await client.accepted("run", input="hello")
        asyncio.get_running_loop().call_later(90, model.open.set)
        await client.ended(run_id)
        assert (await client.closed())[0] == 1000
        assert asyncio.get_running_loop().time() >= 90 + 60


async def test_who_has_a_key_stays_as_long_as_pings_are_answered():
    key, keys = made("ann")
    async with served(keys=keys) as here, connected(here, headers=bearer(key)) as client:
        closed = asyncio.get_running_loop().create_task(client.closed())
        await asyncio.sleep(3600)
        assert not closed.done()
        await client.socket.close()
        await closed


async def test_who_answers_no_ping_is_given_up():
    async with served() as here, connected(here, autoping=False) as client:
        assert (await client.socket.receive()).type.name == "PING"
        assert asyncio.get_running_loop().time() == pytest.approx(20, abs=1)
        assert await client.closed() == (1011, "no answer to a ping")
        assert asyncio.get_running_loop().time() == pytest.approx(40, abs=1)


async def test_a_server_that_shuts_down_takes_no_new_work_and_says_goodbye():
    model = Gate()
    async with served(Agent(model=model), shutdown_grace=10) as here, connected(here) as client:
        run_id = await client.accepted("run", input="hello")
        await client.until("delta")
        ending = asyncio.get_running_loop().create_task(drain(here.app))
        await settled()
        assert (await client.refused("run", input="more"))["kind"] == "unavailable"
        status, _ = await here.json(PATH)
        assert status == 503
        model.open.set()
        assert (await client.ended(run_id))[-1].type == EventType.FINAL
        assert await client.closed() == (1001, "the server shuts down")
        await ending
    assert here.app[SERVER].draining


async def test_an_ordinary_request_is_told_that_this_is_a_websocket():
    async with served() as here:
        status, body = await here.json(PATH)
        assert (status, body["error"]["kind"]) == (400, "bad_request")
        status, body = await here.json(f"{PATH}?surplus=1")
        assert (status, body["error"]["kind"]) == (400, "request")


async def test_nothing_is_left_of_those_who_came_and_went():
    async with served(Agent(model=Gate())) as here:
        tasks = len(asyncio.all_tasks())
        for number in range(50):
            async with connected(here, f"{PATH}?user_id=u{number}") as client:
                run_id = await client.accepted("run", input="hello")
                await client.until("delta")
                await client.accepted("cancel", run_id=run_id)
                await client.drop()
        await settled(200)
        assert len(here.server.connections) == 0
        assert not here.server.connections.sockets
        assert len(asyncio.all_tasks()) <= tasks
