"""FakeProvider: a strict OpenAI-compatible or Ollama server over real HTTP on the loopback, driven by scripts.

It runs in the current event loop, so it works in virtual time and its client may live in the same test. It has
no model and no opinion: it plays what it is told and writes down what it was asked. What it refuses is in `wire`.
"""

import asyncio
import collections
import itertools
import json
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from aiohttp import web

from agentflow.testing.wire import ollama_refusal, refusal

_CLOSE_TIMEOUT = 0.1  # seconds a handler gets to end by itself; 0 would mean for ever to aiohttp
_TURNS = 3  # of the loop after each piece, so that a client in this loop can take it by itself
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds

Ending: TypeAlias = Literal["complete", "client_left", "reset", "refused", "closed"]


@dataclass(frozen=True)
class Delay:
    """Wait this many seconds of the loop's time."""

    seconds: float


@dataclass(frozen=True)
class Reset:
    """Break the connection with a TCP reset."""


@dataclass(frozen=True)
class HalfClose:
    """Close the sending side in the middle of the body, then wait for the client to leave."""


@dataclass(frozen=True)
class Stall:
    """Send nothing more until the client leaves."""


Step: TypeAlias = bytes | Delay | Reset | HalfClose | Stall


@dataclass(frozen=True)
class Reply:
    """One scripted response: steps in order, then the proper end of the body.

    The status and the headers are sent with the first bytes; `b""` sends them alone. So a `Reset`, `Delay` or
    `Stall` before any bytes comes before the headers. `completion` is what a request without `stream` gets
    instead of the steps, if given.
    """

    steps: Sequence[Step]
    status: int = 200
    content_type: str = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    completion: dict[str, Any] | None = None

    @property
    def body(self) -> bytes:
        """All bytes of the steps, joined."""
        return b"".join(step for step in self.steps if isinstance(step, bytes))


@dataclass
class RecordedRequest:
    """One request as it came. `body` is the parsed JSON, None if it was not JSON. `ended` is None while served."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    ended: Ending | None = None


# What is served, by method and end of the path, and the rules for a body sent there.
_ROUTES: tuple[tuple[str, str, Callable[[Any], str | None] | None], ...] = (
    ("POST", "/chat/completions", refusal),
    ("POST", "/api/chat", ollama_refusal),
    ("GET", "/models", None),
    ("GET", "/api/tags", None),
)

Script: TypeAlias = Reply | Sequence[Step]
Respond: TypeAlias = Callable[[RecordedRequest], Script]


def _chunk(**fields: Any) -> bytes:
    head = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 0, "model": "fake"}
    return b"data: " + json.dumps(head | fields, ensure_ascii=False).encode() + b"\n\n"


def _delta(**delta: Any) -> bytes:
    return _chunk(choices=[{"index": 0, "delta": delta, "finish_reason": None}])


def _reply(deltas: Iterable[bytes], message: dict[str, Any], finish: str) -> Reply:
    pieces = tuple(deltas)
    usage = {"prompt_tokens": 10, "completion_tokens": len(pieces), "total_tokens": 10 + len(pieces)}
    choice = {"index": 0, "finish_reason": finish}
    ending = (_chunk(choices=[choice | {"delta": {}}]), _chunk(choices=[], usage=usage), b"data: [DONE]\n\n")
    completion = {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 0,
        "model": "fake",
        "choices": [choice | {"message": {"role": "assistant", **message}}],
        "usage": usage,
    }
    return Reply(steps=(*pieces, *ending), completion=completion)


def text(content: str, *, chunk: int | None = None, finish: str = "stop") -> Reply:
    """An answer in pieces of `chunk` characters (None: one per word), with finish, usage and `[DONE]`."""
    return _reply((_delta(content=piece) for piece in _pieces(content, chunk)), {"content": content}, finish)


def tool_calls(
    *calls: tuple[str, dict[str, Any] | str], content: str = "", finish: str = "tool_calls", chunk: int | None = None
) -> Reply:
    """A reply that asks for tools: pairs of name and arguments, a `str` being the exact text of the arguments.

    The ids are call_1, call_2 … in every reply, as providers do that number per reply. `chunk` cuts the
    arguments into pieces of that many characters (None: whole); `content` is text before the calls.
    """
    wire = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
            },
        }
        for number, (name, arguments) in enumerate(calls, 1)
    ]
    deltas = [_delta(content=piece) for piece in _pieces(content, None)]
    for index, call in enumerate(wire):
        deltas.extend(_call_deltas(index, call, chunk))
    return _reply(deltas, {"content": content or None, "tool_calls": wire}, finish)


def _call_deltas(index: int, call: dict[str, Any], chunk: int | None) -> Iterable[bytes]:
    arguments = call["function"]["arguments"]
    pieces = [arguments] if chunk is None else _pieces(arguments, chunk)
    first = {"name": call["function"]["name"], "arguments": pieces[0] if pieces else ""}
    yield _delta(tool_calls=[{"index": index, "id": call["id"], "type": "function", "function": first}])
    for piece in pieces[1:]:
        yield _delta(tool_calls=[{"index": index, "function": {"arguments": piece}}])


def _pieces(content: str, chunk: int | None) -> list[str]:
    if chunk is not None:
        return [content[start : start + chunk] for start in range(0, len(content), chunk)]
    words = content.split(" ")
    return [word for word in (*(f"{word} " for word in words[:-1]), words[-1]) if word]


def status(code: int, body: bytes | dict[str, Any] | None = None, *, headers: Mapping[str, str] | None = None) -> Reply:
    """An error answer. Without `body` an error object as OpenAI sends it; bytes are sent as they stand."""
    if body is None:
        body = _error(f"scripted status {code}")
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(steps=(raw,), status=code, content_type="application/json", headers=headers or {})


def recorded(
    source: Path | bytes,
    cuts: Sequence[int] | int | None = None,
    *,
    code: int = 200,
    content_type: str = "text/event-stream",
) -> Reply:
    """A recorded body, played whole, in pieces of `cuts` bytes, or in pieces of the lengths in `cuts`.

    What the lengths leave over is one more piece. The client may still read two pieces at once.
    """
    body = source.read_bytes() if isinstance(source, Path) else source
    if cuts is None:
        lengths: Iterable[int] = (len(body),)
    elif isinstance(cuts, int):
        lengths = (cuts,) * -(-len(body) // cuts)
    else:
        lengths = (*cuts, len(body))
    ends = itertools.accumulate(lengths)
    pieces = tuple(body[start:end] for start, end in itertools.pairwise((0, *ends)) if start < len(body))
    return Reply(steps=pieces, status=code, content_type=content_type)


def _error(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


class _BrokenError(Exception):
    """The connection was broken on purpose; `ending` says how."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


class FakeProvider:
    """The server, as an async context manager; `base_url` is what a client is given.

    Requests to `/chat/completions`, `/api/chat` and the lists of models are answered by `scripts` in order, then by
    `respond`; with neither left the answer is 400. `scripts` may be added to meanwhile. With `strict` a request that
    breaks a rule of `wire` is answered 400 and uses up no script; the reason is kept in `refusals`. Leaving the
    context breaks what is open.
    """

    def __init__(self, *scripts: Script, respond: Respond | None = None, strict: bool = True) -> None:
        self.scripts = collections.deque(scripts)
        self.requests: list[RecordedRequest] = []
        self.refusals: list[str] = []
        self.base_url = ""
        self._respond = respond
        self._strict = strict
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_CLOSE_TIMEOUT)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        await self._runner.cleanup()

    @property
    def connections(self) -> int:
        """How many sockets are open now, idle ones included."""
        server = self._runner.server
        handlers = server.connections if server is not None else ()
        return sum(handler.transport is not None for handler in handlers)

    @property
    def active(self) -> int:
        """How many requests are being served now."""
        return sum(request.ended is None for request in self.requests)

    async def received(self, count: int = 1) -> None:
        """Return once `count` requests have come."""
        await self._until(lambda: len(self.requests) >= count)

    async def idle(self) -> None:
        """Return once no request is being served."""
        await self._until(lambda: self.active == 0)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        record = RecordedRequest(request.method, request.path, request.headers, raw, _parsed(raw))
        self.requests.append(record)
        self._changed.set()
        try:
            reply = self._choose(record)
            response = await self._play(request, reply, asked=record.body)
            record.ended = record.ended or "complete"
        except _BrokenError as broken:
            record.ended = broken.ending
            return web.Response()  # aiohttp wants one, and finds that nobody is left to get it
        except ConnectionError:
            record.ended = "client_left"
            return web.Response()
        except asyncio.CancelledError:
            record.ended = "closed" if self._closing.is_set() else "client_left"
            raise
        finally:
            self._changed.set()
        return response

    def _choose(self, record: RecordedRequest) -> Reply:
        routes = [rule for method, end, rule in _ROUTES if method == record.method and record.path.endswith(end)]
        if not routes:
            return self._refuse(record, f"no route for {record.method} {record.path}", 404)
        fault = routes[0](record.body) if self._strict and routes[0] is not None else None
        if fault is not None:
            return self._refuse(record, fault)
        if self.scripts:
            script: Script = self.scripts.popleft()
        elif self._respond is not None:
            script = self._respond(record)
        else:
            return self._refuse(record, f"no script is left for request {len(self.requests)}")
        return script if isinstance(script, Reply) else Reply(steps=script)

    def _refuse(self, record: RecordedRequest, reason: str, code: int = 400) -> Reply:
        record.ended = "refused"
        self.refusals.append(reason)
        return status(code, _error(reason))

    async def _play(self, request: web.Request, reply: Reply, asked: Any) -> web.StreamResponse:
        if reply.completion is not None and not (isinstance(asked, dict) and asked.get("stream")):
            return web.json_response(reply.completion)
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        response.content_type = reply.content_type
        for step in reply.steps:
            if isinstance(step, bytes):
                if not response.prepared:
                    await response.prepare(request)
                await response.write(step)
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
            else:
                await self._act(request, step)
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()
        return response

    async def _act(self, request: web.Request, step: Delay | Reset | HalfClose | Stall) -> None:
        transport = request.transport
        if transport is None:  # the client left meanwhile
            raise ConnectionResetError
        if isinstance(step, Reset):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()
            raise _BrokenError("reset")
        if isinstance(step, HalfClose):
            transport.write_eof()
        try:
            async with asyncio.timeout(step.seconds if isinstance(step, Delay) else None):
                await self._closing.wait()
        except TimeoutError:
            return
        transport.abort()
        raise _BrokenError("closed")
