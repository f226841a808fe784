"""Exchanges with a provider over HTTP: connections, time limits, and foreign exceptions that become ours.

One request and one reply per exchange, none repeated. What goes over the wire is in `requests`, what the bytes of a
reply mean is up to their parser.
"""

import asyncio
import re
from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import ContentEncodingError
from pydantic import SecretStr

from agentflow.errors import (
    ConfigError,
    ModelConnectionError,
    ModelError,
    ModelProtocolError,
    ModelStatusError,
    ModelTimeoutError,
    ModelTruncatedError,
)
from agentflow.models.base import ModelChunk
from agentflow.models.failures import error_from_body, mask

T = TypeVar("T")

CUSTOM = "custom"  # the provider of an address that stands under no name
MAX_BODY_BYTES = 8 * 1024 * 1024  # of a reply that is not streamed
MAX_ERROR_BYTES = 64 * 1024
MAX_ATTEMPTS = (
    64  # connections that one client opens at a time: more overrun a server's queue of those not accepted yet
)
AFTER_FINISH = 5.0  # seconds to wait for usage and the end mark once the finish reason is there
AFTER_END = 0.1  # seconds to wait for the end of the body after its end mark, so that the connection can be kept

# Headers that the requests of the running task carry besides the endpoint's own, such as those that name its trace.
REQUEST_HEADERS: ContextVar[Mapping[str, str] | None] = ContextVar("agentflow_request_headers", default=None)

# The first class that fits counts. A test holds this against all that aiohttp can raise.
_TRANSLATION: tuple[tuple[type[Exception], type[ModelError]], ...] = (
    (aiohttp.ServerTimeoutError, ModelTimeoutError),
    (aiohttp.ClientPayloadError, ModelTruncatedError),
    (aiohttp.ClientConnectionError, ModelConnectionError),
    (aiohttp.ClientError, ModelProtocolError),
    (OSError, ModelConnectionError),
)


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Limits of one call, in seconds.

    `connect` is for one attempt to connect, from its beginning: names, TCP and TLS. `first_byte` is from the request
    to the first byte of the reply, `idle` between two pieces of it, `total` for everything.
    """

    connect: float = 5.0
    first_byte: float = 30.0
    idle: float = 30.0
    total: float = 300.0


class Parser(Protocol):
    """What reads a streamed reply. See `parsing.ChatStreamParser`, whose laws hold for every one."""

    @property
    def ended(self) -> bool:
        """Whether the rest of the body does not matter."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the reply is whole."""
        ...

    def feed(self, data: bytes) -> list[ModelChunk]:
        """What `data` adds."""
        ...

    def finish(self) -> list[ModelChunk]:
        """What was held back, at the end of the body; raises the `ModelError` that ended the reply."""
        ...


@dataclass(frozen=True)
class _Limit:
    """A point in the loop's time, and what it means that it has passed."""

    at: float
    meaning: str


@dataclass(frozen=True)
class _Pool:
    """The connections of one event loop; `slots` are the exchanges it may have open, None for any number."""

    session: aiohttp.ClientSession
    slots: asyncio.Semaphore | None


class Endpoint:
    """Where a provider is, and the key for it.

    Connections are opened by the first exchange, kept, and closed by `aclose`; each belongs to the event loop that
    made it, and a new loop gets new ones. `connections` bounds the exchanges at once; those over it wait without a
    limit of time, 0 means no bound. Errors name the provider, or the address where the provider is just "custom".
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: SecretStr | str | None = None,
        provider: str,
        timeouts: Timeouts | None = None,
        connections: int = 0,
    ) -> None:
        self.base_url = checked_url(base_url)
        self.provider = mask(self.base_url) if provider == CUSTOM else provider
        self.key = SecretStr(_checked_key(api_key, self.provider))
        self.timeouts = timeouts or Timeouts()
        self._connections = connections
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

    async def open(self, method: str, path: str, body: dict[str, Any] | None = None) -> "Exchange":
        """Send a request; the exchange once its reply has begun well. Whoever gets it closes it.

        Raises `ModelError`: for a redirect and every other status but 200 too.
        """
        pool = await self._pool()
        if pool.slots is not None:
            await pool.slots.acquire()
        try:
            limits = _Limits(self.timeouts, self.provider, self.key)
            data = None if body is None else msgspec.json.encode(body)
            headers = REQUEST_HEADERS.get()
            request = pool.session.request(
                method, self.base_url + path, data=data, headers=headers, allow_redirects=False
            )
            response = await limits.keep(request, limits.first_byte)
        except BaseException:  # also a cancel: the place is free again
            if pool.slots is not None:
                pool.slots.release()
            raise
        exchange = Exchange(self, response, limits, pool.slots)
        try:
            await exchange.check()
        except BaseException:  # also a cancel: an answer that nobody reads must not hold its connection
            exchange.close()
            raise
        return exchange

    async def names(self, path: str, field: str, name: str) -> list[str]:
        """What a list of models at `path` names, sorted: the `name` of each object in its `field`.

        Raises `ModelError`; `ModelProtocolError` for anything that is no such list.
        """
        exchange = await self.open("GET", path)
        try:
            body = await exchange.whole()
        finally:
            exchange.close()
        try:
            return sorted(str(item[name]) for item in msgspec.json.decode(body)[field])
        except (msgspec.DecodeError, TypeError, KeyError) as error:
            raise ModelProtocolError(
                f"{self.provider!r} sent no list of models: check that {self.base_url!r} is the right address",
                provider=self.provider,
            ) from error

    async def aclose(self) -> None:
        """Close the connections of the running loop. The endpoint may be used again; it then opens new ones."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        await self._close_orphans()
        if pool is not None:
            await pool.session.close()

    async def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None or pool.session.closed:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            if self.key.get_secret_value():
                headers["Authorization"] = f"Bearer {self.key.get_secret_value()}"
            session = aiohttp.ClientSession(
                connector=_Connector(self.timeouts.connect),
                timeout=aiohttp.ClientTimeout(total=None),
                headers=headers,
            )
            slots = asyncio.Semaphore(self._connections) if self._connections else None
            pool = self._pools[loop] = _Pool(session, slots)
            await self._close_orphans()
        return pool

    async def _close_orphans(self) -> None:
        """Close what belongs to loops that are closed; a session of a loop that runs elsewhere is left alone."""
        for loop in [loop for loop in self._pools if loop.is_closed()]:
            await self._pools.pop(loop).session.close()


class Exchange:
    """A reply that has begun. Closing it closes the connection, unless the body was read to its end."""

    def __init__(
        self,
        endpoint: Endpoint,
        response: aiohttp.ClientResponse,
        limits: "_Limits",
        slots: asyncio.Semaphore | None,
    ) -> None:
        self._endpoint = endpoint
        self._provider = endpoint.provider
        self._response = response
        self._limits = limits
        self._slots = slots

    @property
    def content_type(self) -> str:
        """What the body is said to be, in lower case."""
        return self._response.content_type.lower()

    def close(self) -> None:
        """Let go of the connection and of the slot. Closing again changes nothing."""
        self._response.close()
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.release()

    async def check(self) -> None:
        """Raise unless the status is 200."""
        response, key = self._response, self._endpoint.key.get_secret_value()
        if 300 <= response.status < 400:
            target = mask(re.split("[?#]", response.headers.get("Location", "nowhere"))[0], key)
            raise ModelStatusError(
                f"{self._provider!r} answered {response.status} and points to {target!r}; redirects are not followed: "
                f"set base_url to where {self._endpoint.base_url!r} really is",
                provider=self._provider,
                status=response.status,
            )
        if response.status == 200:
            return
        try:
            body = await self.whole(MAX_ERROR_BYTES)
        except ModelError:  # the status tells more than a broken error body
            body = b""
        raise error_from_body(
            response.status,
            response.content_type,
            body,
            provider=self._provider,
            headers=response.headers,
            secret=key,
        )

    def expect(self, *content_types: str) -> None:
        """Raise `ModelProtocolError` unless the body is one of these."""
        if self.content_type not in content_types:
            given = mask(self.content_type, self._endpoint.key.get_secret_value())
            raise ModelProtocolError(
                f"{self._provider!r} answered with {given!r} instead of a completion: "
                f"check that {str(self._response.url)!r} is the right address",
                provider=self._provider,
                status=self._response.status,
            )

    async def whole(self, most: int | None = None) -> bytes:
        """The whole body. Raises `ModelProtocolError` for one of more than `most` bytes."""
        most = MAX_BODY_BYTES if most is None else most
        pieces: list[bytes] = []
        size = 0
        while data := await self._limits.keep(self._response.content.readany(), self._limits.next_byte()):
            pieces.append(data)
            size += len(data)
            if size > most:
                raise ModelProtocolError(
                    f"{self._provider!r} sent a body of more than {most} bytes", provider=self._provider
                )
        return b"".join(pieces)

    async def piece(self, parser: Parser) -> bytes:
        """The next piece of a stream, b"" at its end, which is also where the parser needs nothing more.

        A broken connection is an end too: whether it came too early is for the parser to say.
        """
        if parser.ended:
            await self._read_out(parser)
            return b""
        try:
            limit = self._limits.next_byte(finished=parser.complete)
            return await self._limits.keep(self._response.content.readany(), limit)
        except (ModelConnectionError, ModelTruncatedError):
            return b""
        except ModelTimeoutError:
            if not parser.complete:
                raise
            return b""

    async def _read_out(self, parser: Parser) -> None:
        """Read the end of a body whose end mark has come: only then can the connection be used again."""
        if not parser.complete:
            return
        try:
            async with asyncio.timeout(AFTER_END):
                while await self._response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError, OSError):
            return  # the reply is whole; its connection is closed instead of kept


class _Connector(aiohttp.TCPConnector):
    """Opens a few connections at a time, each attempt with a limit of its own that no queue counts towards."""

    def __init__(self, seconds: float) -> None:
        super().__init__(limit=0)
        self._seconds = seconds
        self._attempts = asyncio.Semaphore(MAX_ATTEMPTS)

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  the signature that is overridden
    ) -> ResponseHandler:
        async with self._attempts:
            try:
                async with asyncio.timeout(self._seconds):
                    return await super()._create_connection(req, traces, timeout)
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError(f"no connection within {self._seconds:g} s") from error


class _Limits:
    """The time limits of one call, and the seam at which foreign exceptions become ours."""

    def __init__(self, timeouts: Timeouts, provider: str, key: SecretStr) -> None:
        now = asyncio.get_running_loop().time()
        self._idle = timeouts.idle
        self._connect = timeouts.connect
        self._provider = provider
        self._key = key
        self._begun = False
        self._total = _Limit(now + timeouts.total, f"did not end its reply within {timeouts.total:g} s")
        self.first_byte = _Limit(now + timeouts.first_byte, f"sent nothing within {timeouts.first_byte:g} s")

    def next_byte(self, *, finished: bool = False) -> _Limit:
        """Until when the next piece of the body has to come."""
        if not self._begun:
            self._begun = True
            return self.first_byte
        idle = min(self._idle, AFTER_FINISH) if finished else self._idle
        return _Limit(asyncio.get_running_loop().time() + idle, f"fell silent for {idle:g} s within its reply")

    async def keep(self, awaitable: Awaitable[T], limit: _Limit) -> T:
        """What `awaitable` gives; raises `ModelTimeoutError` if it takes too long, else our error for its own."""
        if limit.at > self._total.at:
            limit = self._total
        try:
            async with asyncio.timeout_at(limit.at) as timer:
                return await awaitable
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            if timer.expired():
                raise ModelTimeoutError(f"{self._provider!r} {limit.meaning}", provider=self._provider) from error
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> ModelError:
        kind = next(ours for theirs, ours in _TRANSLATION if isinstance(error, theirs))
        if isinstance(error.__cause__, ContentEncodingError):
            kind = ModelProtocolError
        if kind is ModelTimeoutError:
            words = f"did not accept a connection within {self._connect:g} s"
        else:
            # aiohttp tells how it would check a certificate, even where nothing came to that
            text = mask(str(error), self._key.get_secret_value()).replace(" ssl:default", "")
            words = f"failed: {' '.join(text.split()) or type(error).__name__}"
        return kind(f"{self._provider!r} {words}", provider=self._provider)


def checked_url(base_url: str) -> str:
    """The address without a "/" at its end. Raises `ConfigError` for one that cannot be, or that has secrets in it."""
    try:
        parts = urlsplit(base_url)
        host = (parts.hostname or "").encode("idna")
        sound = parts.scheme in ("http", "https") and host and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, brackets that do not close, a name that no host can have
        sound = False
    if not sound or " " in base_url or not base_url.isprintable():
        # What stands before "@" or after "?" may be a secret, and nobody can say where it ends.
        shown = "(not shown: it may hold a secret)" if re.search("[@?#]", base_url) else repr(mask(base_url))
        raise ConfigError(f"base_url {shown} is not an http or https address such as 'http://host:8000/v1'")
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise ConfigError(f"base_url at {parts.hostname!r} must have no user, query or fragment: give a key as api_key")
    return base_url.rstrip("/")


def _checked_key(api_key: SecretStr | str | None, provider: str) -> str:
    key = (api_key.get_secret_value() if isinstance(api_key, SecretStr) else api_key or "").strip()
    if not (key.isascii() and (key.isprintable() or not key)) or " " in key:
        raise ConfigError(f"the key for {provider!r} has characters that no key has: is it the right text?")
    return key
