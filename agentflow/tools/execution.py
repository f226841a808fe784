"""Runs one call of one tool, whatever the tool does, and says what the model gets.

It decides nothing about a run: unknown tools and wrong arguments never come here, and what an outcome means is
the chain's business.
"""

import asyncio
import hashlib
import inspect
import logging
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Never

import msgspec
from reactivex import Observable

from agentflow.errors import ToolFailedError, ToolTimeoutError
from agentflow.events import MAX_RESULT_BYTES, ErrorInfo, ToolStatus, plain
from agentflow.messages import clean_text
from agentflow.streams import CANCEL_GRACE, Inbox, iterate
from agentflow.tools import honesty
from agentflow.tools.failures import Cause, judge
from agentflow.tools.pools import Ended, Pools, ThreadPool
from agentflow.tools.registry import Tool
from agentflow.tools.schema import ToolContext

__all__ = ["MAX_STREAM_BYTES", "Pools", "ThreadPool", "ToolContext", "ToolOutcome", "execute"]

logger = logging.getLogger(__name__)

MAX_STREAM_BYTES = 1024 * 1024  # encoded, of all items that one call streams
MAX_AHEAD = 64  # items a generator in a thread may be ahead of the loop
_BURST = MAX_AHEAD // 2  # items after which a stream asks whether there is room for more

_SUCCESS = "[success]"
_SLICE = 1024 * 1024  # characters encoded at a time when a huge text is measured
_LIGHT = 2000  # values a result may have to be encoded on the loop: about a millisecond


@dataclass(frozen=True, kw_only=True)
class ToolOutcome:
    """How a call ended. `result` is the exact text for the model, its first line the status.

    `status` and `error` are None if `ok`. `truncated` says that `result` was cut to 64 KiB.
    `cause` says why a failure may pass ("" that it will not), `retry_after` when its service asks to be called again,
    in seconds. `emitted` says that a delta went out, `abandoned` that the body did not end when it was asked to, so
    that it may still have its effect.
    """

    ok: bool
    result: str
    status: ToolStatus | None = None
    error: ErrorInfo | None = None
    duration_ms: float = 0.0
    truncated: bool = False
    cause: Cause = ""
    retry_after: float | None = None
    emitted: bool = False
    abandoned: bool = False


class _Text(NamedTuple):
    text: str
    truncated: bool


async def _always_ready() -> None:
    await asyncio.sleep(0)  # a generator that never waits must not keep the loop for itself


async def execute(
    tool: Tool,
    arguments: Mapping[str, Any],
    context: ToolContext,
    *,
    on_delta: Callable[[Any], None],
    pools: Pools,
    ready: Callable[[], Awaitable[None]] = _always_ready,
    stop: "asyncio.Future[None] | None" = None,
) -> ToolOutcome:
    """Run one call. `arguments` fit the tool's schema; the tool gets a copy of them.

    `on_delta` is called on the loop's thread with each item of a stream, as plain JSON data, in order, before
    this returns and never after; every 32 items the stream waits for `ready()`, so that it cannot run ahead of
    whoever takes them. Everything the tool raises, SystemExit and a CancelledError of its own included,
    is an outcome, and so is a value that says failure (`honesty`); only MemoryError is raised again.
    At `tool.timeout`, and when the caller is cancelled, the tool
    is asked to stop: a coroutine gets `CANCEL_GRACE` seconds to clean up and is then left and counted in
    `pools`, a thread is left and counted at once. Likewise when `stop` is done: the outcome is then `amended`, unless
    the tool gave its result after all; if it is done already, nothing is run.
    """
    if stop is not None and stop.done():
        return _amended(0.0, emitted=False, abandoned=False)
    loop = asyncio.get_running_loop()
    began = loop.time()
    call = _Call(tool, arguments, context, _Output(on_delta, ready, pools), pools)
    body = pools.tasks.spawn(call.run(), name=f"body of tool {tool.name}")
    try:
        waited: set[asyncio.Future[Any]] = {body} if stop is None else {body, stop}
        await asyncio.wait(waited, timeout=tool.timeout, return_when=asyncio.FIRST_COMPLETED)
        late = not body.done()
    finally:
        call.leave()
        if not body.done():
            await _stop(body, pools)
    abandoned = call.in_thread or not body.done()
    duration = round((loop.time() - began) * 1000, 3)
    stopped = late and stop is not None and stop.done()
    gave_up = body.cancelled() if stopped and body.done() else late or body.cancelled()
    # A body that is cancelled although nobody here asked for it has cancelled itself.
    ended = Ended(error=asyncio.CancelledError()) if gave_up or not body.done() else body.result()
    if isinstance(ended.error, MemoryError):
        raise ended.error
    if ended.error is None:
        text = ended.value
        return ToolOutcome(
            ok=True, result=text.text, truncated=text.truncated, duration_ms=duration, emitted=call.output.emitted
        )
    if stopped:
        return _amended(duration, emitted=call.output.emitted, abandoned=abandoned)
    if not late:
        logger.debug("tool %r failed in call %r", tool.name, context.call_id, exc_info=ended.error)
    failure = judge(_timeout(tool, abandoned=abandoned) if late else ended.error, tool)
    return ToolOutcome(
        ok=False,
        result=failure.result,
        status=failure.status,
        error=failure.error,
        duration_ms=duration,
        cause=failure.cause,
        retry_after=failure.retry_after,
        emitted=call.output.emitted,
        abandoned=abandoned,
    )


def _amended(duration_ms: float, *, emitted: bool, abandoned: bool) -> ToolOutcome:
    message = "the call was stopped, to begin again with other arguments; what it had given so far is void"
    return ToolOutcome(
        ok=False,
        result=f"[error: amended]\n{message}",
        status="amended",
        error=ErrorInfo(kind="amended", message=message),
        duration_ms=duration_ms,
        emitted=emitted,
        abandoned=abandoned,
    )


def _timeout(tool: Tool, *, abandoned: bool) -> ToolTimeoutError:
    warning = " It could not be stopped and may still have its effect." if abandoned else ""
    return ToolTimeoutError(f"{tool.name} gave no result within {tool.timeout:g} s.{warning}")


async def _stop(body: "asyncio.Task[Ended]", pools: Pools) -> None:
    body.cancel()
    await asyncio.wait({body}, timeout=CANCEL_GRACE)
    if not body.done():
        pools.tasks.abandoned += 1
        logger.warning("%s did not end within %.1f s of its cancel", body.get_name(), CANCEL_GRACE)


class _Output:
    """The items of one call's stream: counted, handed on, and kept for the result."""

    def __init__(self, on_delta: Callable[[Any], None], ready: Callable[[], Awaitable[None]], pools: Pools) -> None:
        self._on_delta = on_delta
        self._tasks = pools.tasks
        self._from_thread = 0
        self.ready = ready
        self.emitted = False
        self._texts: list[str] | None = []
        self._last: Any = None
        self._size = 0
        self._room = threading.Semaphore(MAX_AHEAD)
        self._closed = False

    def take(self, item: Any) -> Any:
        """The item as plain data, kept for the result. Raises `ToolFailedError` over the bound."""
        data = plain(item)
        self._size += len(msgspec.json.encode(data))
        if self._size > MAX_STREAM_BYTES:
            raise ToolFailedError(f"the tool's output is larger than {MAX_STREAM_BYTES} bytes")
        if not isinstance(data, str):
            self._texts = None
        elif self._texts is not None:
            self._texts.append(data)
        self._last = data
        return data

    def emit(self, data: Any) -> None:
        """Hand an item on, unless the call is over. On the loop's thread."""
        if not self._closed:
            self.emitted = True
            self._on_delta(data)

    def emit_from_thread(self, data: Any) -> None:
        """Likewise, for an item that a generator's thread handed over; every so often it may go on."""
        self.emit(data)
        self._from_thread += 1
        if self._from_thread % _BURST == 0:
            self._tasks.spawn(self._make_room(), name="room for a tool's output")

    async def _make_room(self) -> None:
        await self.ready()
        self._room.release(_BURST)

    def wait_for_room(self) -> bool:
        """Wait until fewer than MAX_AHEAD items are on their way; whether to go on. In a generator's thread."""
        self._room.acquire()
        return not self._closed

    def close(self) -> None:
        """Hand on nothing more, and let a waiting thread go."""
        self._closed = True
        self._room.release()

    def result(self) -> Any:
        """The joined text if all items are text, else the last item."""
        return self._last if self._texts is None else "".join(self._texts)


class _Call:
    """One call of a tool's body. `run` is its task."""

    def __init__(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        context: ToolContext,
        output: _Output,
        pools: Pools,
    ) -> None:
        self._tool = tool
        self._arguments = arguments
        self._context = context
        self._pools = pools
        self._loop = asyncio.get_running_loop()
        self._left = False
        self.output = output
        self.in_thread = False

    def leave(self) -> None:
        """Hand on nothing more, and begin nothing more. Harmless after the end."""
        self._left = True
        self.output.close()

    async def run(self) -> Ended:
        """The end of the call: its value is a `_Text`. Raises only the CancelledError of its task."""
        try:
            if self._tool.kind in ("coroutine", "async_generator"):
                return await self._follow(self._call())
            ended = await self._in_thread(self._call_and_encode)
            if ended.error is not None or isinstance(ended.value, _Text):
                return ended
            return await self._follow(ended.value)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  out of a task, SystemExit would stop the loop
            return Ended(error=error)

    def _call(self) -> Any:
        arguments = self._tool.contract.convert(self._arguments)
        contexts = dict.fromkeys(self._tool.contract.contexts, self._context)
        return self._tool.function(**arguments, **contexts)

    def _call_and_encode(self) -> Any:
        """In a thread: the result as text, or something that only the loop can follow."""
        value = self._call()
        if inspect.isgenerator(value):
            return self._pull(value)
        return value if _is_deferred(value) else self._success(value)

    def _pull(self, generator: Generator[Any, Never, Any]) -> _Text:
        """In a thread: drive a generator, its items handed to the loop in bursts."""
        inbox = Inbox(self._loop, self.output.emit_from_thread)
        with closing(generator):
            for item in generator:
                data = self.output.take(item)
                if not self.output.wait_for_room() or inbox.dropped:
                    break
                inbox.put(data)
        return self._success(self.output.result())

    async def _follow(self, value: Any) -> Ended:
        """Await and stream until there is a result, then encode it."""
        while _is_deferred(value):
            if isinstance(value, Observable):  # first: it can be awaited too, but then gives its last item only
                value = await self._stream(iterate(value))
            elif isinstance(value, AsyncIterable):
                value = await self._stream(aiter(value))
            else:
                value = await value
        if inspect.isgenerator(value):
            return await self._in_thread(partial(self._pull, value))
        if _is_light(value):
            return Ended(value=self._success(value))
        return await self._pools.encoding.run(partial(self._success, value))

    def _success(self, value: Any) -> _Text:
        """A value as the model gets it: text as it is, anything else as JSON; None is `null`.

        Raises `ReportedFailureError` if the value says that the tool has failed.
        """
        is_text = isinstance(value, str)
        data = str.__str__(value) if is_text else plain(value)
        honesty.check(value, data, self._tool.is_error)
        return capped(_SUCCESS, data if is_text else msgspec.json.encode(data).decode())

    async def _stream(self, items: AsyncIterator[Any]) -> Any:
        try:
            count = 0
            async for item in items:
                count += 1
                if _is_light(item):
                    data = self.output.take(item)
                else:
                    data = _value(await self._pools.encoding.run(partial(self.output.take, item)))
                self.output.emit(data)
                if count % _BURST == 0:
                    await self.output.ready()
        finally:
            aclose = getattr(items, "aclose", None)
            if aclose is not None:
                await aclose()
        return self.output.result()

    async def _in_thread(self, call: Callable[[], Any]) -> Ended:
        return await self._pools.get(self._tool.pool).run(partial(self._inside, call), name=self._tool.name)

    def _inside(self, call: Callable[[], Any]) -> Any:
        """In a thread: `call`, unless everybody has left before it began."""
        self.in_thread = True  # before the look at `_left`: who leaves sees this, or this sees that
        try:
            return None if self._left else call()
        finally:
            self.in_thread = False


def _value(ended: Ended) -> Any:
    if ended.error is not None:
        raise ended.error
    return ended.value


def _is_deferred(value: Any) -> bool:
    return isinstance(value, Observable | AsyncIterable) or (
        inspect.isawaitable(value) and not inspect.isgenerator(value)
    )


def _is_light(value: Any) -> bool:
    """Whether encoding `value` takes about a millisecond at most."""
    left = _LIGHT
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if type(item) in (str, bytes, list, tuple, dict, set, frozenset):
            left -= len(item) // 32 if isinstance(item, str | bytes) else len(item)
        elif item is not None and type(item) not in (bool, int, float):
            return False  # a foreign object: who knows what its dump does
        if left < 0:
            return False
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            waiting.extend(item)
    return True


def capped(line: str, text: str) -> _Text:
    """A result: the status `line` (ASCII) and `text`, in at most MAX_RESULT_BYTES of UTF-8, and whether it was cut.

    What is cut ends with the size and the hash of the whole.
    """
    room = MAX_RESULT_BYTES - len(line) - 1
    if len(text) <= room:
        whole = clean_text(text)
        if len(whole.encode()) <= room:
            return _Text(f"{line}\n{whole}", truncated=False)
    size, digest = 0, hashlib.sha256()
    for start in range(0, len(text), _SLICE):  # never a second copy of a huge text
        piece = text[start : start + _SLICE].encode("utf-8", "surrogatepass")
        size += len(piece)
        digest.update(piece)
    mark = f"\n[cut: the whole result has {size} bytes, sha256 {digest.hexdigest()[:16]}]"
    head = clean_text(text[:room]).encode()[: room - len(mark)].decode(errors="ignore")
    return _Text(f"{line}\n{head}{mark}", truncated=True)
