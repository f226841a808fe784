"""The client of every OpenAI-compatible `/chat/completions` endpoint, streaming or not.

It makes one request per call and repeats none; what the bytes mean is in `parsing`, which endpoint a model string
means is in `routing`. No model or provider name has a meaning here.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
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
from agentflow.messages import Message, ToolCall, ToolSpec, clean_text, unpaired
from agentflow.models.base import ModelChunk, ModelRequest
from agentflow.models.calls import is_object
from agentflow.models.failures import error_from_body, mask
from agentflow.models.parsing import ChatStreamParser, parse_completion

T = TypeVar("T")

MAX_BODY_BYTES = 8 * 1024 * 1024  # of a reply that is not streamed
MAX_ERROR_BYTES = 64 * 1024
AFTER_FINISH = 5.0  # seconds to wait for usage and the end mark once the finish reason is there
AFTER_END = 0.1  # seconds to wait for the end of the body after its end mark, so that the connection can be kept

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")

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

    `connect` until the connection stands, `first_byte` from the request to the first byte of the reply, `idle`
    between two pieces of it, `total` for everything.
    """

    connect: float = 5.0
    first_byte: float = 30.0
    idle: float = 30.0
    total: float = 300.0


@dataclass(frozen=True)
class _Limit:
    """A point in the loop's time, and what it means that it has passed."""

    at: float
    meaning: str


class OpenAIModel:
    """One model at one endpoint.

    `base_url` ends before `/chat/completions`. Connections are opened by the first call, kept, and closed by
    `aclose`; each belongs to the event loop that made it, and a new loop gets new ones. With `stream=False` the
    reply is asked for whole. `max_tokens_field` is what the endpoint calls the limit of an answer.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: SecretStr | str | None = None,
        provider: str = "openai",
        stream: bool = True,
        timeouts: Timeouts | None = None,
        max_tokens_field: str = "max_tokens",
    ) -> None:
        self.name = name
        self.provider = provider
        self._url = _checked_url(base_url) + "/chat/completions"
        self._key = _checked_key(api_key, provider)
        self._asks_for_stream = stream
        self._timeouts = timeouts or Timeouts()
        self._max_tokens_field = max_tokens_field
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, provider={self.provider!r}, url={self._url!r})"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """One call: text as it comes, at the end one chunk with calls, finish reason and usage.

        An unpaired history raises `ModelError` and is not sent. Closing the generator closes the connection.
        """
        body = self._body(request)
        limits = _Limits(self._timeouts, self.provider)
        response = await self._post(body, limits)
        try:
            await self._check(response, limits)
            if response.content_type == "application/json":
                whole = await self._read_all(response, limits, MAX_BODY_BYTES)
                last = parse_completion(whole, self.provider, secret=self._key)
            else:
                parser = ChatStreamParser(self.provider, secret=self._key)
                while data := await self._read_on(response, limits, parser):
                    for chunk in parser.feed(data):
                        yield chunk
                await self._read_out(response, parser)
                last = parser.finish()
            for chunk in last:
                yield chunk
        finally:
            response.close()  # if the body was read to its end, the connection is in the pool already

    async def aclose(self) -> None:
        """Close the connections of the running loop. The model may be used again; it then opens new ones."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        await self._close_orphans()
        if session is not None:
            await session.close()

    async def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            session = self._sessions[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, connect=self._timeouts.connect),
                headers=headers,
            )
            await self._close_orphans()
        return session

    async def _close_orphans(self) -> None:
        """Close what belongs to loops that are closed; a session of a loop that runs elsewhere is left alone."""
        for loop in [loop for loop in self._sessions if loop.is_closed()]:
            await self._sessions.pop(loop).close()

    async def _post(self, body: bytes, limits: "_Limits") -> aiohttp.ClientResponse:
        session = await self._session()
        return await limits.keep(session.post(self._url, data=body, allow_redirects=False), limits.first_byte)

    async def _check(self, response: aiohttp.ClientResponse, limits: "_Limits") -> None:
        """Raise unless the reply is a completion."""
        status = response.status
        if 300 <= status < 400:
            target = mask(response.headers.get("Location", "nowhere").partition("?")[0], self._key)
            raise ModelStatusError(
                f"{self.provider!r} answered {status} and points to {target!r}; redirects are not followed: "
                f"set base_url to where {self._url!r} really is",
                provider=self.provider,
                status=status,
            )
        if status != 200:
            try:
                body = await self._read_all(response, limits, MAX_ERROR_BYTES)
            except ModelError:  # the status tells more than a broken error body
                body = b""
            raise error_from_body(
                status,
                response.content_type,
                body,
                provider=self.provider,
                headers=response.headers,
                secret=self._key,
            )
        if response.content_type not in ("text/event-stream", "application/json"):
            raise ModelProtocolError(
                f"{self.provider!r} answered with {response.content_type!r} instead of a completion: "
                f"check that {self._url!r} is an OpenAI-compatible endpoint",
                provider=self.provider,
                status=status,
            )

    async def _read_all(self, response: aiohttp.ClientResponse, limits: "_Limits", most: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while data := await limits.keep(response.content.readany(), limits.next_byte()):
            pieces.append(data)
            size += len(data)
            if size > most:
                raise ModelProtocolError(
                    f"{self.provider!r} sent a body of more than {most} bytes", provider=self.provider
                )
        return b"".join(pieces)

    async def _read_on(self, response: aiohttp.ClientResponse, limits: "_Limits", parser: ChatStreamParser) -> bytes:
        """The next piece of a stream, b"" at its end, which is also where nothing more is needed.

        A broken connection is an end too: whether it came too early is for the parser to say.
        """
        if parser.ended:
            return b""
        try:
            return await limits.keep(response.content.readany(), limits.next_byte(finished=parser.complete))
        except (ModelConnectionError, ModelTruncatedError):
            return b""
        except ModelTimeoutError:
            if not parser.complete:
                raise
            return b""

    async def _read_out(self, response: aiohttp.ClientResponse, parser: ChatStreamParser) -> None:
        """Read the end of a body whose end mark has come: only then can the connection be used again."""
        if not parser.complete:
            return
        try:
            async with asyncio.timeout(AFTER_END):
                while await response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError, OSError):
            return  # the reply is whole; its connection is closed instead of kept

    def _body(self, request: ModelRequest) -> bytes:
        """The request as JSON: the one place where a `ModelRequest` gets its wire form."""
        fault = unpaired(request.messages)
        if fault is not None:
            raise ModelError(f"the history is not paired and was not sent: {fault}", provider=self.provider)
        body: dict[str, Any] = {"model": self.name, "messages": [_message(message) for message in request.messages]}
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
        if self._asks_for_stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.max_tokens is not None:
            body[self._max_tokens_field] = request.max_tokens
        return msgspec.json.encode(body)


class _Limits:
    """The time limits of one call, and the seam at which foreign exceptions become ours."""

    def __init__(self, timeouts: Timeouts, provider: str) -> None:
        now = asyncio.get_running_loop().time()
        self._idle = timeouts.idle
        self._connect = timeouts.connect
        self._provider = provider
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
            words = f"failed: {' '.join(mask(str(error)).split()) or type(error).__name__}"
        return kind(f"{self._provider!r} {words}", provider=self._provider)


def _message(message: Message) -> dict[str, Any]:
    # What the provider gave to be shown again must not replace what is said.
    wire: dict[str, Any] = dict(message.provider_data or {}) if message.role == "assistant" else {}
    wire["role"] = message.role
    wire["content"] = clean_text(message.content)
    if message.tool_calls:
        wire["content"] = wire["content"] or None  # null is right here, and only here
        wire["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.role == "tool":
        wire["tool_call_id"] = message.call_id
    return wire


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = clean_text(call.raw_arguments)
    # Blank, null or cut arguments were answered with an error; many servers refuse to be shown them again.
    function = {"name": _legal_name(call.name), "arguments": arguments if is_object(arguments) else "{}"}
    return {"id": call.call_id, "type": "function", "function": function}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": _legal_name(tool.name), "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _legal_name(name: str) -> str:
    """`name` as providers with rules for names accept it; models do ask for tools that cannot exist."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "_"


def _checked_url(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        host = (parts.hostname or "").encode("idna")
        sound = parts.scheme in ("http", "https") and host and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, brackets that do not close, a name that no host can have
        sound = False
    if not sound or " " in base_url or not base_url.isprintable():
        raise ConfigError(f"base_url {mask(base_url)!r} is not an http or https address such as 'http://host:8000/v1'")
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise ConfigError(f"base_url at {parts.hostname!r} must have no user, query or fragment: give a key as api_key")
    return base_url.rstrip("/")


def _checked_key(api_key: SecretStr | str | None, provider: str) -> str:
    key = (api_key.get_secret_value() if isinstance(api_key, SecretStr) else api_key or "").strip()
    if not (key.isascii() and (key.isprintable() or not key)) or " " in key:
        raise ConfigError(f"the key for {provider!r} has characters that no key has: is it the right text?")
    return key
