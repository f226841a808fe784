"""What the tests of the WebSocket share: a client that speaks commands, and one that speaks bytes."""

import asyncio
import base64
import json
import os
import socket
import struct
from contextlib import asynccontextmanager

from aiohttp import WSMsgType

from agentflow.events import TERMINAL_TYPES, decode

PATH = "/api/agent/ws"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
ENDS = {str(kind) for kind in TERMINAL_TYPES}


class Closed(Exception):
    """The server has closed."""

    def __init__(self, code, reason=""):
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class Client:
    """Sends commands, and keeps the events of each run as they come."""

    def __init__(self, socket):
        self.socket = socket
        self.events = {}

    async def send(self, kind, **fields):
        await self.socket.send_str(json.dumps({"type": kind, **fields}))

    async def next(self):
        """What is told next."""
        message = await self.socket.receive()
        if message.type is not WSMsgType.TEXT:
            raise Closed(self.socket.close_code, message.extra)
        told = json.loads(message.data)
        if "seq" in told:
            self.events.setdefault(told["run_id"], []).append(decode(message.data))
        return told

    async def until(self, *kinds):
        """What is told of one of these types, which must come."""
        while (told := await self.next())["type"] not in kinds:
            pass
        return told

    async def ask(self, kind, **fields):
        """The `ack` or `refused` to a command."""
        await self.send(kind, id=kind, **fields)
        told = await self.until("ack", "refused")
        assert told["id"] == kind
        return told

    async def accepted(self, kind, **fields):
        """The run of a command, which must not be refused."""
        told = await self.ask(kind, **fields)
        assert told == {"type": "ack", "id": kind, "run_id": told.get("run_id")}
        return told["run_id"]

    async def refused(self, kind, **fields):
        """The error with which a command is refused."""
        told = await self.ask(kind, **fields)
        assert told["type"] == "refused"
        return told["error"]

    async def ended(self, run_id):
        """The events of a run that is told to its end."""
        while not (found := self.events.get(run_id)) or found[-1].type not in TERMINAL_TYPES:
            await self.next()
        return found

    async def closed(self):
        """The code and the reason with which the server closes."""
        try:
            while True:
                await self.next()
        except Closed as closed:
            return closed.code, closed.reason

    async def drop(self):
        """Be gone, without a word."""
        self.socket._response.connection.transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def connected(here, path=PATH, **options):
    """A client of a server of `served`."""
    async with here.client.ws_connect(here.base + path, **options) as socket:
        yield Client(socket)


def frame(kind, data=b"", *, last=True, reserved=0, mask=b"\1\2\3\4"):
    """A frame as clients send it; without a mask as they must not."""
    size = len(data)
    flag = 0x80 if mask else 0
    length = bytes([flag | size]) if size < 126 else bytes([flag | 127]) + struct.pack("!Q", size)
    head = bytes([(0x80 if last else 0) | reserved << 4 | kind]) + length
    if not mask:
        return head + data
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return head + mask + (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")


class Raw:
    """A client that sends whatever bytes, and reads frames."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self):
        """The next frame, as its kind and its data."""
        first, second = await self.reader.readexactly(2)
        assert first & 0x70 == 0
        assert second < 128, "a server does not mask"
        size = second
        if second == 126:
            (size,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif second == 127:
            (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first & 0x0F, await self.reader.readexactly(size)

    async def told(self):
        """What is told next, past pings."""
        kind, data = await self.frame()
        while kind == PING:
            kind, data = await self.frame()
        assert kind == TEXT, (kind, data)
        return json.loads(data)

    async def told_until_cut(self):
        """The events that still come, by run; the connection must have been cut."""
        seen = {}
        try:
            while True:
                told = await self.told()
                if "seq" in told:
                    seen.setdefault(told["run_id"], []).append(decode(json.dumps(told)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return seen

    async def closed(self):
        """The code and the reason with which the server closes, past all else; None for a connection that is cut."""
        try:
            while True:
                kind, data = await self.frame()
                if kind == CLOSE:
                    return struct.unpack("!H", data[:2])[0], data[2:].decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def gone(self):
        """Read up to the end of the connection."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            return


def narrow():
    """A socket that takes little before it is read from."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.setblocking(False)
    return made


def handshake(host, path=PATH, **headers):
    """A request for an upgrade; a header that is None is left out."""
    lines = {
        "Host": host,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    told = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"GET {path} HTTP/1.1\r\n{told}\r\n".encode()


@asynccontextmanager
async def raw(here, path=PATH, *, limit=2**16, sock=None, **headers):
    """A client that has been upgraded, and speaks bytes from then on."""
    if sock is None:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port, limit=limit)
    else:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", here.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    try:
        writer.write(handshake(f"127.0.0.1:{here.port}", path, **headers))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)
