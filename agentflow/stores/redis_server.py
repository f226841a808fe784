"""The Redis server as a store uses it: connections, a deadline for every call, scripts, and what its errors mean.

It knows no run and no session. This is the only module of the stores that imports the client library.
"""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import msgspec

from agentflow.errors import ConfigError, StoreError, StoreFormatError
from agentflow.streams import TaskOwner

try:
    from redis.asyncio.connection import Connection, parse_url
    from redis.exceptions import NoPermissionError, NoScriptError, RedisError, ResponseError
except ModuleNotFoundError as missing:
    raise ConfigError("the Redis store needs the package redis: pip install 'agentflow-rx[redis]'") from missing

logger = logging.getLogger(__name__)

T = TypeVar("T")

Argument: TypeAlias = str | bytes | float

MAX_WAITING_CALLS = 10_000  # calls that may wait for each connection
_BATCH = 100  # of them that are sent at once

FORMAT = "1"  # of the keys and what is in them

_FORMAT_LUA = """
local found = redis.call('GET', KEYS[1])
if not found then
    redis.call('SET', KEYS[1], ARGV[3])
end
return found or ARGV[3]
"""

# What to say of an error, by words that are its name or stand in its text: not every version of the server and of the
# client library gives it the same name.
_FAULTS = (
    (("BusyLoadingError", "LOADING"), "it is loading its data; try again in a while"),
    (
        ("OutOfMemoryError", "OOM"),
        "its memory is full (maxmemory): give it more, or the store a shorter ttl; reading goes on",
    ),
    (("ReadOnlyError", "READONLY"), "it is a replica, which only reads; point the URL to the primary"),
    (("MasterDownError", "MASTERDOWN"), "it is a replica that has lost its primary"),
    (("MovedError", "MOVED"), "it is a member of a Redis Cluster, which this store cannot use"),
    (("MISCONF",), "it cannot write to its disk and refuses to change anything; look at its log"),
    (("NOREPLICAS",), "it has too few replicas to accept a write"),
    (("BUSY ",), "it is busy with a script of somebody else; try again in a while"),
    (("AuthenticationError",), "it refuses the user or the password of the URL"),
    (("NoPermissionError",), "the user of the URL may not do this; the store's commands and keys must be allowed"),
)


class Script:
    """A Lua script, known to the server by its hash once it was sent."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class _Lane:
    """One connection for many calls: those that come while others are under way are sent together, in their order.

    So nobody waits for a connection, and a call that is given up takes none with it. A call that was given up before
    it was sent never is. When the connection is lost, or no reply comes within `patience` seconds, all that was sent
    has failed, and what waits goes out on a new one.
    """

    def __init__(self, make_connection: Callable[[], Any], patience: float) -> None:
        self._make_connection = make_connection
        self._patience = patience
        self._connection: Any = None
        self._waiting: deque[tuple[list[bytes], asyncio.Future[Any]]] = deque()
        self._sent: deque[asyncio.Future[Any]] = deque()
        self._asked = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def put(self, packed: list[bytes]) -> asyncio.Future[Any]:
        """Send a command when it is its turn. The future gets the reply; an exception as its result."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((packed, future))
        self._asked.set()
        return future

    async def run(self) -> None:
        """Work for ever; a cancel closes the connection."""
        try:
            while True:
                if not self._waiting:
                    self._asked.clear()
                    await self._asked.wait()
                    await self._drop_if_closed()
                try:
                    await self._exchange()
                except (RedisError, OSError) as error:  # a TimeoutError is an OSError
                    await self._drop()
                    while self._sent:
                        self._answer(error)
        finally:
            self._sent.extend(future for _, future in self._waiting)
            while self._sent:
                self._answer(StoreError("the store was closed while a call was under way"))
            await self._drop()

    async def _exchange(self) -> None:
        packed: list[bytes] = []
        while self._waiting and len(self._sent) < _BATCH:
            command, future = self._waiting.popleft()
            if not future.done():
                packed += command
                self._sent.append(future)
        async with asyncio.timeout(self._patience):
            if self._connection is None:
                self._connection = self._make_connection()
                await self._connection.connect()
            await self._connection.send_packed_command(packed)
        while self._sent:
            async with asyncio.timeout(self._patience):
                try:
                    reply = await self._connection.read_response()
                except ResponseError as error:
                    reply = error
            self._answer(reply)

    def _answer(self, reply: Any) -> None:
        future = self._sent.popleft()
        if not future.done():
            future.set_result(reply)

    async def _drop_if_closed(self) -> None:
        """What was idle may have been closed by the server: not to notice would fail the next call."""
        if self._connection is None:
            return
        can_read = getattr(self._connection, "can_read", None) or self._connection.can_read_destructive  # before 8.0
        try:
            closed = await can_read()
        except (RedisError, OSError):
            closed = True
        if closed:
            await self._drop()

    async def _drop(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.disconnect(nowait=True)


class RedisServer:
    """One server by its URL: at most `connections` for calls, opened when they are needed.

    Every call ends within `call_timeout` seconds, connecting included, and is sent once at most. Raises `StoreError`
    for whatever goes wrong: after most errors it is not known whether the server has done it. The first call checks
    whether what was acknowledged survives a restart of the server; what speaks against it stands in `warnings`
    and is logged, with `require_aof` it is a `ConfigError`, and with None it does not matter.

    For one event loop at a time: its connections are closed with the loop's tasks, or by `aclose`.
    """

    def __init__(
        self, url: str, *, prefix: str, ttl: float, call_timeout: float, connections: int, require_aof: bool | None
    ) -> None:
        ours: dict[str, Any] = {
            "decode_responses": False,
            "protocol": 2,
            # The only deadline is ours: with one of its own, the client library may lose a cancel while it sends.
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "health_check_interval": 0,
            "retry_on_timeout": False,
        }
        try:
            self._options: dict[str, Any] = {**parse_url(url), **ours}
            self._packer = self.make_connection()
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"the URL of the Redis store is unusable ({error}); redis://host:6379/0 is one"
            ) from error
        self.name = _name(self._options)
        self.prefix = prefix
        self.call_timeout = call_timeout
        self.warnings: tuple[str, ...] = ()
        self._ttl = max(int(ttl * 1000), 1)
        self._max_lanes = connections
        self._require_aof = require_aof
        self._checked = False
        self._format = Script(_FORMAT_LUA)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner = TaskOwner()
        self._lanes: list[_Lane] = []
        self._checking = asyncio.Lock()

    async def call(self, *command: Argument) -> Any:
        """The reply to one command: bytes, integers, None, and lists of them."""
        with self.translated():
            async with asyncio.timeout(self.call_timeout):
                await self._ready()
                return await self._send(*command)

    async def run(self, script: Script, key: str, *args: Argument) -> Any:
        """The reply of a script about `key`. Its first arguments are the prefix of all keys and the ttl in ms."""
        with self.translated():
            async with asyncio.timeout(self.call_timeout):
                await self._ready()
                return await self._run(script, key, *args)

    async def look(self) -> tuple[str, tuple[str, ...]]:
        """Its version, and what speaks against it. Changes nothing there, and raises what a first call does."""
        with self.translated():
            async with asyncio.timeout(self.call_timeout):
                self._begin()
                info = _facts(await self._send("INFO"))
                self._check_format(await self._send("GET", f"{self.prefix}:format"))
        return info.get("redis_version", "unknown"), tuple(self._judge(info))

    def make_connection(self) -> Any:
        """A connection that is not open yet, for calls that block; who made it disconnects it."""
        options = {name: value for name, value in self._options.items() if name != "connection_class"}
        return self._options.get("connection_class", Connection)(**options)

    async def aclose(self) -> None:
        """Close all connections."""
        self._lanes.clear()
        await self._owner.aclose()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Foreign errors within become ours."""
        try:
            yield
        except TimeoutError as error:
            raise StoreError(
                f"{self.name} did not answer within {self.call_timeout:g} s; whether it has done it is not known"
            ) from error
        except (RedisError, OSError, UnicodeError) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> StoreError:
        text = f"{type(error).__name__}: {error}"
        if "WRONGTYPE" in text:
            return StoreFormatError(
                f"{self.name} has a key of another kind where the store has its own; it was left as it is. "
                f"Give the store another prefix than {self.prefix!r} ({error})"
            )
        # What goes wrong while connecting comes wrapped in an error that says less.
        kinds = [kind.__name__ for one in (error, error.__cause__) for kind in type(one).__mro__]
        known = " ".join([*kinds, text])
        for words, meaning in _FAULTS:
            if any(word in known for word in words):
                return StoreError(f"{self.name}: {meaning} ({error})")
        return StoreError(f"{self.name} failed: {text}")

    # -- connections -------------------------------------------------------------------------------------

    async def _send(self, *command: Argument) -> Any:
        reply = await self._lane().put(self._packer.pack_command(*command))
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _run(self, script: Script, key: str, *args: Argument) -> Any:
        arguments = (1, key, self.prefix, self._ttl, *args)
        try:
            return await self._send("EVALSHA", script.sha, *arguments)
        except NoScriptError:
            return await self._send("EVAL", script.text, *arguments)

    def _lane(self) -> _Lane:
        """An idle lane, a new one, or the one with the fewest calls."""
        lane = min(self._lanes, key=len, default=None)
        if lane is None or (len(lane) and len(self._lanes) < self._max_lanes):
            lane = _Lane(self.make_connection, self.call_timeout)
            self._lanes.append(lane)
            self._owner.spawn(lane.run(), name="connection to Redis")
        if len(lane) >= MAX_WAITING_CALLS:
            raise StoreError(f"{self.name}: {MAX_WAITING_CALLS} calls wait for it already; try again in a while")
        return lane

    async def _ready(self) -> None:
        """Begin in the running loop, on a server that was checked."""
        self._begin()
        if not self._checked:
            async with self._checking:
                if not self._checked:
                    self.warnings = await self._check()
                    self._checked = True

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._owner, self._lanes, self._checking = loop, TaskOwner(), [], asyncio.Lock()

    # -- what the server must be -------------------------------------------------------------------------

    async def _check(self) -> tuple[str, ...]:
        """What speaks against the server. Raises where that is too much."""
        try:
            info = _facts(await self._send("INFO"))
        except NoPermissionError as error:
            found = [f"{self.name} does not tell whether it keeps its data ({error})"]
        else:
            found = self._judge(info)
        if self._require_aof is None:
            found = []
        if found and self._require_aof:
            raise ConfigError("; ".join(found))
        self._check_format(await self._run(self._format, f"{self.prefix}:format", FORMAT))
        for text in found:
            logger.warning("%s", text)
        return tuple(found)

    def _check_format(self, version: bytes | None) -> None:
        if version is not None and version != FORMAT.encode():
            raise StoreFormatError(
                f"{self.name} has data of format {version.decode()!r} under the prefix {self.prefix!r}, and this "
                f"agentflow knows {FORMAT!r}; update agentflow, or give the store another prefix"
            )

    def _judge(self, info: dict[str, str]) -> list[str]:
        if info.get("cluster_enabled") == "1":
            raise ConfigError(f"{self.name} is a member of a Redis Cluster; the store needs one primary for all keys")
        found = []
        if info.get("aof_enabled") == "0":
            found.append(f"{self.name} has no append-only file: runs are lost when it dies; set appendonly yes")
        if info.get("maxmemory_policy", "").startswith("allkeys"):
            found.append(f"{self.name} drops any key when its memory is full; set maxmemory-policy noeviction")
        return found


def unpacked(decode: Callable[[bytes], T], data: bytes, what: str) -> T:
    """`data` as a record. Raises `StoreFormatError` where it is none."""
    try:
        return decode(data)
    except msgspec.DecodeError as error:
        raise StoreFormatError(f"{what} cannot be read, and was left as it is ({error})") from error


def _facts(info: bytes) -> dict[str, str]:
    lines = info.decode(errors="replace").splitlines()
    return {name: value for name, found, value in (line.partition(":") for line in lines) if found}


def _name(options: dict[str, Any]) -> str:
    """The server in words, without the secrets of its URL."""
    where = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"the Redis server {where}, database {options.get('db', 0)}"
