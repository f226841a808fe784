"""The WebSocket on the wire: who is upgraded, frames that cannot be, clients that stand still, and one not ours."""

import asyncio
import base64
import hashlib
import json
import os
import re
import struct

import pytest
import websockets
from websockets.asyncio.client import connect

from agentflow import Agent
from agentflow.events import EventType, decode
from agentflow.testing import ScriptedModel, assert_laws
from agentflow.transports.websocket import BURST, CLOSE_SECONDS, MAX_MESSAGE
from tests.transports.served import served, settled
from tests.transports.sockets import (
    BINARY,
    CLOSE,
    PATH,
    PING,
    PONG,
    TEXT,
    connected,
    frame,
    handshake,
    narrow,
    raw,
)

pytestmark = pytest.mark.virtual_time

GOOD_KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def command(kind, **fields):
    return frame(TEXT, json.dumps({"type": kind, **fields}).encode())


def now():
    return asyncio.get_running_loop().time()


# -- who is upgraded ---------------------------------------------------------------------------------------

FOREIGN = [
    "null",
    "",
    "https://evil.example",
    "http://evil.example:{port}",
    "http://127.0.0.1:{port}.evil.example",
    "http://evil.127.0.0.1:{port}",
    "http://127.0.0.1",
    "http://127.0.0.1:{port}0",
    "http://127.0.0.1:1",
    "http://localhost:{port}",
    "http://user@127.0.0.1:{port}",
    "http://127.0.0.1:{port}@evil.example",
    "http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}#x",
    "ws://127.0.0.1:{port}",
    "file://127.0.0.1:{port}",
    "http://127.0.0.1:{port} http://evil.example",
    "http://xn--e1awd7f.example",
    "https://chat.example.org.evil.example",
    "https://chat.example.orgevil",
    "https://evilchat.example.org",
    "http://chat.example.org",
    "https://chat.example.org:444",
]
WRONG_HOSTS = ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "", "127.0.0.1:{port}@evil.example"]


async def status_of(here, path=PATH, *, host=None, **headers):
    """The status with which a request for an upgrade is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(handshake(host if host is not None else f"127.0.0.1:{here.port}", path, **headers))
    head = await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    await asyncio.sleep(0)
    return int(head.split()[1])


@pytest.mark.parametrize("origin", FOREIGN, ids=ascii)
async def test_pages_of_other_sites_are_not_upgraded(origin):
    async with served(allowed_origins=["https://chat.example.org"]) as here:
        assert await status_of(here, Origin=origin.format(port=here.port)) == 403
        assert len(here.server.connections) == 0


@pytest.mark.parametrize("host", WRONG_HOSTS, ids=ascii)
async def test_names_that_are_not_the_servers_are_not_upgraded_even_with_their_own_origin(host):
    async with served() as here:
        name = host.format(port=here.port)
        assert await status_of(here, host=name, Origin=f"http://{name}") in (400, 403)
        assert await status_of(here, host=name) in (400, 403)
        assert len(here.server.connections) == 0


async def test_pages_of_the_server_and_of_sites_that_are_allowed_are_upgraded():
    async with served(allowed_origins=["https://chat.example.org"]) as here:
        for origin in (f"http://127.0.0.1:{here.port}", f"HTTP://127.0.0.1:{here.port}", "https://chat.example.org"):
            assert await status_of(here, Origin=origin) == 101
        assert await status_of(here) == 101
        assert await status_of(here, Sec_Fetch_Site="cross-site") == 403
        assert await status_of(here, Sec_Fetch_Site="same-origin", Origin=f"http://127.0.0.1:{here.port}") == 101


BAD_HANDSHAKES = [
    {"Upgrade": None},
    {"Upgrade": "h2c"},
    {"Connection": "keep-alive"},
    {"Sec_WebSocket_Version": "12"},
    {"Sec_WebSocket_Version": None},
    {"Sec_WebSocket_Key": None},
    {"Sec_WebSocket_Key": "short"},
    {"Sec_WebSocket_Key": "!" * 24},
    {"Sec_WebSocket_Key": "\xe9" * 24},
]


@pytest.mark.parametrize("headers", BAD_HANDSHAKES, ids=str)
async def test_a_handshake_that_is_none_is_refused(headers, caplog):
    async with served() as here:
        lines = {name: value.encode().decode("latin-1") if value else value for name, value in headers.items()}
        assert await status_of(here, **lines) == 400
        await settled()
        assert len(here.server.connections) == 0
        assert not here.server.connections.sockets
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_nothing_is_compressed_and_no_protocol_agreed_on():
    async with served() as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        offered = {"Sec_WebSocket_Extensions": "permessage-deflate; client_max_window_bits"}
        writer.write(handshake(f"127.0.0.1:{here.port}", Sec_WebSocket_Key=GOOD_KEY, **offered))
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in head
        assert "sec-websocket-extensions" not in head
        assert "sec-websocket-protocol" not in head
        writer.transport.abort()


# -- frames ------------------------------------------------------------------------------------------------

BAD_FRAMES = {
    "a text that is no UTF-8": (frame(TEXT, b'{"type": "\xff"}'), 1007),
    "an overlong text": (frame(TEXT, b"\xc0\xaf"), 1007),
    "half a character": (frame(TEXT, "é".encode()[:1]), 1007),
    "a surrogate": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "bytes": (frame(BINARY, b"{}"), 1003),
    "a bit that was not agreed on": (frame(TEXT, b"{}", reserved=1), 1002),
    "something compressed": (frame(TEXT, b"\xaa\x56\x2a\xa9", reserved=4), 1002),
    "a kind that there is not": (frame(3, b"{}"), 1002),
    "a control frame that there is not": (frame(11, b""), 1002),
    "a ping in pieces": (frame(PING, b"x", last=False), 1002),
    "a long ping": (frame(PING, b"x" * 126), 1002),
    "a piece of nothing": (frame(0, b"x"), 1002),
    "a message within another": (frame(TEXT, b"{", last=False) + frame(TEXT, b"}"), 1002),
    "a close of one byte": (frame(CLOSE, b"\x03"), 1002),
    "a close with a code that there is not": (frame(CLOSE, struct.pack("!H", 1005)), 1002),
    "a close whose reason is no UTF-8": (frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), 1007),
    "a message over the limit": (frame(TEXT, b"x" * (MAX_MESSAGE + 1)), 1009),
    "only the head of 5 MiB": (frame(TEXT, b"x" * (5 * 2**20))[:14], 1009),
    "the head of more than there can be": (b"\x81\xff" + b"\xff" * 8, 1009),
    "too much in pieces": (
        frame(TEXT, b"x" * 2**17, last=False) + frame(0, b"x" * 2**17, last=False) + frame(0, b"x"),
        1009,
    ),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_frames_that_cannot_be_are_answered_with_a_code(name, caplog):
    data, code = BAD_FRAMES[name]
    async with served() as here, raw(here) as client:
        await client.send(data)
        closed = await client.closed()
        assert closed[0] == code
        assert closed[1]
        client.writer.write(frame(CLOSE, struct.pack("!H", code)))
        await client.gone()
        await settled()
        assert len(here.server.connections) == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_the_largest_message_is_read_and_one_in_pieces_too():
    async with served() as here, raw(here) as client:
        await client.send(frame(TEXT, b" " * MAX_MESSAGE))
        assert (await client.told())["error"]["kind"] == "request"
        text = json.dumps({"type": "cancel", "id": "é", "run_id": "r"}, ensure_ascii=False).encode()
        pieces = [text[at : at + 1] for at in range(len(text))]  # cut within a character too
        await client.send(
            frame(TEXT, pieces[0], last=False)
            + b"".join(frame(0, piece, last=False) for piece in pieces[1:-1])
            + frame(PING, b"between")
            + frame(0, pieces[-1])
        )
        assert await client.frame() == (PONG, b"between")
        told = await client.told()
        assert (told["id"], told["error"]["kind"]) == ("é", "run_not_found")


async def test_random_bytes_are_answered_with_a_code_or_a_refusal(caplog):
    async with served() as here:
        for length in (1, 2, 3, 14, 100, 1000, 70_000):
            for _ in range(6):
                async with raw(here) as client:
                    client.writer.write(os.urandom(length))
                    client.writer.write_eof()
                    await client.closed()
            await settled()
            assert len(here.server.connections) == 0
        async with connected(here) as client:
            await client.ended(await client.accepted("run", input="hello"))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_pings_are_answered_and_a_flood_of_them_is_not():
    async with served() as here, raw(here) as client:
        await client.send(frame(PING, b"a") + frame(PONG, b"unasked") + frame(PING, b""))
        assert await client.frame() == (PONG, b"a")
        assert await client.frame() == (PONG, b"")
        await client.send(frame(PING, b"x") * 2000)
        assert (await client.closed())[0] == 1008


async def test_messages_that_all_come_at_once_are_refused_as_a_flood():
    async with served() as here, raw(here) as client:
        await client.send(command("follow", run_id="r") * (int(BURST) + 1))
        assert (await client.closed())[0] == 1008


# -- the end -----------------------------------------------------------------------------------------------


async def test_a_close_is_answered_and_what_comes_after_it_left_alone():
    async with served() as here, raw(here) as client:
        await client.send(frame(CLOSE, struct.pack("!H", 1000) + b"bye") + command("run", input="hello"))
        assert (await client.closed())[0] == 1000
        await client.gone()
        await settled()
        assert len(here.server.presence) == 0
        assert len(here.server.connections) == 0


async def test_a_client_that_does_not_answer_the_close_is_cut_after_five_seconds():
    async with served() as here, raw(here) as client:
        await client.send(frame(BINARY, b"x"))
        assert (await client.closed())[0] == 1003
        await client.gone()
        assert now() == pytest.approx(CLOSE_SECONDS, abs=0.5)


async def test_a_client_that_goes_on_sending_instead_of_closing_is_cut_as_well():
    async with served() as here, raw(here) as client:
        await client.send(frame(BINARY, b"x"))
        assert (await client.closed())[0] == 1003

        async def chatter():
            while not client.reader.at_eof():
                client.writer.write(command("cancel", run_id="r"))
                await asyncio.sleep(0.25)

        chattering = asyncio.get_running_loop().create_task(chatter())
        await client.gone()
        assert now() == pytest.approx(CLOSE_SECONDS, abs=0.5)
        await chattering
        await settled()
        assert len(here.server.connections) == 0


async def test_a_client_that_goes_during_the_handshake_leaves_nothing():
    async with served() as here:
        for cut in (1, 50, -2, None):
            _, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(handshake(f"127.0.0.1:{here.port}")[:cut])
            writer.transport.abort()
            await settled()
        assert len(here.server.connections) == 0
        assert not here.server.connections.sockets


# -- clients that stand still ------------------------------------------------------------------------------

RUNS = 14


def talkative():
    return Agent(model=ScriptedModel(*["x" * 450_000] * RUNS))


def waiting_bytes(here):
    """What the server holds for its clients."""
    return max(
        (
            protocol.transport.get_write_buffer_size()
            for protocol in here.runner.server.connections
            if protocol.transport
        ),
        default=0,
    )


async def test_a_client_that_takes_nothing_is_dropped_after_a_while_and_loses_nothing():
    async with served(talkative()) as here:
        async with raw(here, sock=narrow()) as client:
            for _ in range(RUNS):
                await client.send(command("run", input="hello"))
            await asyncio.sleep(10)
            held = waiting_bytes(here)
            assert 0 < held < 2**16 + 2**20
            assert len(here.server.connections) == 1
            await asyncio.sleep(4)
            assert waiting_bytes(here) == held
            await asyncio.sleep(1 + CLOSE_SECONDS + 1)
            assert len(here.server.connections) == 0
            assert waiting_bytes(here) == 0
            seen = await client.told_until_cut()
        assert seen
        async with connected(here) as client:
            client.events = seen
            for run_id, events in list(seen.items()):
                await client.accepted("follow", run_id=run_id, after=events[-1].seq)
            for run_id in seen:
                assert_laws(await client.ended(run_id))


async def test_a_client_that_reads_again_in_time_is_told_why_it_is_dropped():
    async with served(talkative()) as here, raw(here, sock=narrow()) as client:
        for _ in range(RUNS):
            await client.send(command("run", input="hello"))
        await asyncio.sleep(17)
        assert await client.closed() == (1013, "the client takes nothing")


async def test_a_client_that_stands_still_delays_no_other():
    async with served(talkative()) as here, raw(here, sock=narrow()) as still, connected(here) as other:
        for _ in range(RUNS - 1):
            await still.send(command("run", input="hello"))
        await asyncio.sleep(5)
        began = now()
        assert (await other.ended(await other.accepted("run", input="hello")))[-1].type == EventType.FINAL
        assert now() - began < 1


# -- a client that is not ours -----------------------------------------------------------------------------


async def test_the_websockets_library_talks_to_it():
    async with served() as here:
        url = f"ws://127.0.0.1:{here.port}{PATH}"
        async with connect(url, proxy=None, ping_interval=None, origin=f"http://127.0.0.1:{here.port}") as client:
            await (await client.ping(b"there?"))
            await client.send(json.dumps({"type": "run", "id": "1", "input": "hello"}))
            ack = json.loads(await client.recv())
            assert (ack["type"], ack["id"]) == ("ack", "1")
            found = []
            async for text in client:
                found.append(decode(text))
                if found[-1].type == EventType.FINAL:
                    break
            assert_laws(found)
        assert client.close_code == 1000


async def test_the_websockets_library_understands_why_it_is_closed():
    async with served() as here:
        url = f"ws://127.0.0.1:{here.port}{PATH}"
        for message, code in ((b"x", 1003), ("x" * (5 * 2**20), 1009)):
            async with connect(url, proxy=None, ping_interval=None) as client:
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await client.send(message)
                    await client.recv()
                assert closed.value.rcvd.code == code
                assert closed.value.rcvd.reason
        with pytest.raises(websockets.InvalidStatus) as refused:
            await connect(url, proxy=None, origin="http://evil.example")
        assert refused.value.response.status_code == 403


ACCEPT = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@pytest.mark.parametrize(
    ("key", "frames", "error"),
    [
        ("another", b"", websockets.InvalidHandshake),
        (None, b"\x81\x81\0\0\0\0x", websockets.ConnectionClosedError),  # masked, as only a client's may be
        (None, b"\x81\x01\xff", websockets.ConnectionClosedError),  # no UTF-8
        (None, b"\xc1\x01x", websockets.ConnectionClosedError),  # compressed, which was not agreed on
        (None, b"\x81\x05x", websockets.ConnectionClosedError),  # cut off
    ],
)
async def test_the_websockets_library_fails_on_a_server_that_is_wrong(key, frames, error):
    async def wrong(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked = key or re.search(r"Sec-WebSocket-Key: (\S+)", head, re.IGNORECASE)[1]
        accept = base64.b64encode(hashlib.sha1((asked + ACCEPT).encode()).digest()).decode()
        upgrade = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        writer.write(f"HTTP/1.1 101 Switching Protocols\r\n{upgrade}".encode() + frames)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(wrong, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(error):
            async with connect(f"ws://127.0.0.1:{port}{PATH}", proxy=None, ping_interval=None) as client:
                await client.recv()
