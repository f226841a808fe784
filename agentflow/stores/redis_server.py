"""The Redis server as a store uses it: connections, a deadline for every call, scripts, and what its errors mean.

It knows no run and no session. This is the only module of the stores that imports the client library.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from agentflow.errors import ConfigError, StoreError, StoreFormatError

try:
    from redis.asyncio import BlockingConnectionPool
    from redis.asyncio.connection import parse_url
    from redis.exceptions import NoPermissionError, NoScriptError, RedisError
except ModuleNotFoundError as missing:
    raise ConfigError("the Redis store needs the package redis: pip install 'agentflow-rx[redis]'") from missing

logger = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT = "1"  # of the keys and what is in them

_FORMAT_LUA = """
local found = redis.call('GET', KEYS[1])
if not found then
    redis.call('SET', KEYS[1], ARGV[3])
end
return found or ARGV[3]
"""

# What to say of an error, by a word that is its name or stands in its text.
_FAULTS = (
    ("LOADING", "it is loading its data; try again in a while"),
    ("OOM", "its memory is full (maxmemory): give it more, or a shorter ttl to the store; reading goes on"),
    ("READONLY", "it is a replica, which only reads; point the URL to the primary"),
    ("MASTERDOWN", "it is a replica that has lost its primary"),
    ("MISCONF", "it cannot write to its disk and refuses to change anything; look at its log"),
    ("NOREPLICAS", "it has too few replicas to accept a write"),
    ("BUSY ", "it is busy with a script of somebody else; try again in a while"),
    ("MOVED", "it is a member of a Redis Cluster, which this store cannot use"),
    ("AuthenticationError", "it refuses the user or the password of the URL"),
    ("NoPermissionError", "the user of the URL may not do this; the store's commands and keys must be allowed"),
)


class Script:
    """A Lua script, known to the server by its hash once it was sent."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisServer:
    """One server by its URL: at most `max_connections` connections, opened when they are needed.

    Every call ends within `call_timeout` seconds, connecting included, and is sent once. Raises `StoreError` for
    whatever goes wrong: after most errors it is not known whether the server has done it. The first call checks
    whether what was acknowledged survives a restart of the server; what speaks against it stands in `warnings`
    and is logged, with `require_aof` it is a `ConfigError`. Cancelling a call closes its connection.

    For one event loop at a time: its connections are closed with the loop, or by `aclose`.
    """

    def __init__(
        self, url: str, *, prefix: str, ttl: float, call_timeout: float, max_connections: int, require_aof: bool
    ) -> None:
        ours: dict[str, Any] = {
            "decode_responses": False,
            "protocol": 2,
            # The only deadline is ours: with one of its own, the client library may lose a cancel while it sends.
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "health_check_interval": 0,
            "retry_on_timeout": False,
            "retry_on_error": [],
        }
        try:
            self._options: dict[str, Any] = {**parse_url(url), **ours}
        except ValueError as error:
            raise ConfigError(
                f"the URL of the Redis store is unusable ({error}); redis://host:6379/0 is one"
            ) from error
        self.name = _name(self._options)
        self.prefix = prefix
        self._ttl = max(int(ttl * 1000), 1)
        self.call_timeout = call_timeout
        self.warnings: tuple[str, ...] = ()
        self._max_connections = max_connections
        self._require_aof = require_aof
        self._checked = False
        self._format = Script(_FORMAT_LUA)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: AsyncGenerator[None, None] | None = None
        self._turn = asyncio.Semaphore(max_connections)  # first come, first served: the pool lets others pass
        self._pool: Any = None  # the client library's annotations are incomplete
        self._checking: asyncio.Lock | None = None

    async def call(self, *command: str | bytes | float) -> Any:
        """The reply to one command: bytes, integers, None, and lists of them."""
        with self.translated():
            async with asyncio.timeout(self.call_timeout):
                return await self._send(await self._ready(), *command)

    async def run(self, script: Script, key: str, *args: str | bytes | float) -> Any:
        """The reply of a script about `key`. Its first arguments are the prefix of all keys and the ttl in ms."""
        with self.translated():
            async with asyncio.timeout(self.call_timeout):
                return await self._run(await self._ready(), script, key, *args)

    async def connect(self) -> Any:
        """A connection for a call that blocks, to be disconnected by who got it."""
        with self.translated():
            async with asyncio.timeout(self.call_timeout):
                connection = (await self._ready()).make_connection()
                try:
                    await connection.connect()
                except BaseException:
                    await connection.disconnect(nowait=True)
                    raise
                return connection

    async def aclose(self) -> None:
        """Close all connections."""
        held, self._held, self._loop = self._held, None, None
        if held is not None:
            await held.aclose()

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
        names = " ".join([*kinds, getattr(error, "status_code", None) or "", text])
        for word, meaning in _FAULTS:
            if word in names:
                return StoreError(f"{self.name}: {meaning} ({error})")
        return StoreError(f"{self.name} failed: {text}")

    # -- connections -------------------------------------------------------------------------------------

    async def _send(self, pool: Any, *command: str | bytes | float) -> Any:
        async with self._turn:
            connection = await pool.get_connection()
            try:
                await connection.send_command(*command)
                return await connection.read_response()
            finally:
                await pool.release(connection)

    async def _run(self, pool: Any, script: Script, key: str, *args: str | bytes | float) -> Any:
        arguments = (1, key, self.prefix, self._ttl, *args)
        try:
            return await self._send(pool, "EVALSHA", script.sha, *arguments)
        except NoScriptError:
            return await self._send(pool, "EVAL", script.text, *arguments)

    async def _ready(self) -> Any:
        """The pool of the running loop, on a server that was checked."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._checking = asyncio.Lock()
            self._turn = asyncio.Semaphore(self._max_connections)
            self._pool = BlockingConnectionPool(max_connections=self._max_connections, timeout=None, **self._options)
            self._held = _hold(self._pool)
            await anext(self._held)
        if not self._checked and self._checking is not None:
            async with self._checking:
                if not self._checked:
                    self.warnings = await self._check(self._pool)
                    self._checked = True
        return self._pool

    # -- what the server must be -------------------------------------------------------------------------

    async def _check(self, pool: Any) -> tuple[str, ...]:
        """What speaks against the server. Raises where that is too much."""
        try:
            info = _facts(await self._send(pool, "INFO"))
        except NoPermissionError as error:
            found = [f"{self.name} does not tell whether it keeps its data ({error})"]
        else:
            found = self._judge(info)
        if found and self._require_aof:
            raise ConfigError("; ".join(found))
        version = await self._run(pool, self._format, f"{self.prefix}:format", FORMAT)
        if version != FORMAT.encode():
            raise StoreFormatError(
                f"{self.name} has data of format {version.decode()!r} under the prefix {self.prefix!r}, and this "
                f"agentflow knows {FORMAT!r}; update agentflow, or give the store another prefix"
            )
        for text in found:
            logger.warning("%s", text)
        return tuple(found)

    def _judge(self, info: dict[str, str]) -> list[str]:
        if info.get("cluster_enabled") == "1":
            raise ConfigError(f"{self.name} is a member of a Redis Cluster; the store needs one primary for all keys")
        found = []
        if info.get("aof_enabled") == "0":
            found.append(f"{self.name} has no append-only file: runs are lost when it dies; set appendonly yes")
        if info.get("maxmemory_policy", "").startswith("allkeys"):
            found.append(f"{self.name} drops any key when its memory is full; set maxmemory-policy noeviction")
        return found


async def _hold(pool: Any) -> AsyncGenerator[None, None]:
    """Closes the pool when it is closed itself: by `aclose`, or by the loop, which does so with all that it knows."""
    try:
        yield
    finally:
        await pool.aclose()


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
