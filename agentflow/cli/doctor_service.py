"""What `agentflow doctor` looks at besides models: pools, the store, limits, the server, what is told of runs.

It changes nothing: a store that is not there yet is not made, and none is brought up to date.
"""

import asyncio
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from agentflow.config import sqlite_path
from agentflow.errors import AgentflowError, ConfigError
from agentflow.observability.gates import build_gates
from agentflow.settings import Settings
from agentflow.stores.sqlite_file import MIGRATIONS, SqliteFile
from agentflow.tools.pools import Pools
from agentflow.tools.registry import ToolRegistry
from agentflow.transports.auth import check_bind, is_loopback

Level: TypeAlias = Literal["ok", "note", "problem"]

_PROXY_SECONDS = 60.0  # after which proxies as a rule give up a stream on which nothing comes
_REDIS_SECONDS = 3.0  # for an answer
_OLDEST_REDIS = (6, 2)
_EXPORTERS = {"traces": "opentelemetry.exporter.otlp.proto.http", "metrics": "opentelemetry.exporter.prometheus"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. A "problem" keeps runs from starting, or a server from what it is set to."""

    level: Level
    subject: str
    text: str


async def examine_service(settings: Settings, tools: ToolRegistry, *, offline: bool = False) -> list[Finding]:
    """All findings. `offline` opens no connection."""
    store, limits = await _store(settings, offline=offline), await _limits(settings, offline=offline)
    return [*_pools(settings, tools), store, *limits, *_server(settings), *_telemetry(settings)]


def _pools(settings: Settings, tools: ToolRegistry) -> Iterator[Finding]:
    """Pools that tools share whose number of threads is below what one run may ask of them at once."""
    sizes = {"default": Pools.DEFAULT[0]} | {name: pool.size for name, pool in settings.pools.items()}
    sharing: dict[str, list[str]] = {}
    for tool in tools:
        if tool.kind in ("sync", "generator"):
            sharing.setdefault(tool.pool, []).append(tool.name)
    at_once = settings.chain.max_parallel_tools
    for name, users in sharing.items():
        size = sizes.get(name)
        if size is None:
            text = f"tool {users[0]!r} runs in the pool {name!r}, which is not configured: set pools.{name}.size"
            yield Finding("problem", "pools", text)
            continue
        shared = f"pool {name!r} has {size} threads for {', '.join(users)}"
        if size < at_once:
            advice = f"set pools.{name}.size to {at_once} or more, or chain.max_parallel_tools lower"
            yield Finding(
                "note", "pools", f"{shared}; one run may make {at_once} calls at once, and the rest wait: {advice}"
            )
        else:
            yield Finding("ok", "pools", shared)


async def _store(settings: Settings, *, offline: bool) -> Finding:
    kind = settings.memory.store or "sqlite"
    if kind == "in_memory":
        return Finding("note", "store", "in memory: all runs and sessions end with the process; set memory.store")
    if kind == "redis":
        if settings.memory.url is None:
            return Finding("problem", "store", "memory.store is 'redis': set memory.url to its redis:// address")
        return await _redis("store", settings.memory.url, "agentflow", offline=offline)
    return await asyncio.to_thread(_sqlite, settings)


def _sqlite(settings: Settings) -> Finding:
    path = sqlite_path(settings).absolute()
    try:
        found = SqliteFile(path, patience=1.0).look()
    except AgentflowError as error:
        return Finding("problem", "store", str(error))
    if found is None:
        return _no_file_yet(path, made=settings.memory.url is None)
    version, runs = found
    text = f"{str(path)!r} can be written"
    if version < len(MIGRATIONS):
        text += f"; its tables are of version {version}, and the first use makes them {len(MIGRATIONS)}"
    if runs:
        text += f"; open runs: {runs}. `agentflow runs --open` shows them; a server takes up those nobody works on"
    return Finding("ok", "store", text)


def _no_file_yet(path: Path, *, made: bool) -> Finding:
    """`made` says that the folder is made too."""
    folder = path.parent.parent if made and not path.parent.exists() else path.parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return Finding("ok", "store", f"{str(path)!r}, which the first run makes")
    return Finding(
        "problem", "store", f"{str(path)!r} cannot be made: make the folder, or set memory.url to another file"
    )


async def _redis(subject: str, url: str, prefix: str, *, offline: bool, lasting: bool = True) -> Finding:
    """`lasting` says that what is there has to survive a restart of the server."""
    try:
        from agentflow.stores.redis_server import RedisServer  # needs the extra `redis`

        server = RedisServer(url, prefix=prefix, ttl=1.0, call_timeout=_REDIS_SECONDS, connections=1, require_aof=False)
        if offline:
            return Finding("ok", subject, f"{server.name}, not tried (--offline)")
        try:
            version, against = await server.look()
        finally:
            await server.aclose()
    except AgentflowError as error:
        return Finding("problem", subject, str(error))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _OLDEST_REDIS:
        oldest = ".".join(map(str, _OLDEST_REDIS))
        against = (f"{server.name} has version {version}; it has to be {oldest} or later, or Valkey", *against)
    elif not lasting:
        against = ()
    if against:
        return Finding("problem", subject, "; ".join(against))
    return Finding("ok", subject, f"{server.name}, version {version}")


async def _limits(settings: Settings, *, offline: bool) -> list[Finding]:
    limits = settings.limits
    try:
        build_gates(limits)
    except ConfigError as error:
        return [Finding("problem", "limits", str(error))]
    found = [Finding("ok", "limits", ", ".join(limits.rates) or "none; limits.rates and limits.breaker set some")]
    if limits.url is not None:
        found.append(await _redis("limits", limits.url, "af:limit", offline=offline, lasting=False))
    return found


def _server(settings: Settings) -> list[Finding]:
    server = settings.server
    try:
        check_bind(server.host, server)
    except ConfigError as error:
        return [Finding("problem", "server", str(error))]
    found = [Finding("ok", "server", f"listens on {server.host}:{server.port}, keys: {len(server.keys)}")]
    if is_loopback(server.host) and not server.allowed_hosts:
        return found
    if server.ping >= _PROXY_SECONDS:
        text = f"server.ping is {server.ping:g} s, and proxies cut streams that say nothing for {_PROXY_SECONDS:g} s"
        return [*found, Finding("problem", "proxy", f"{text}: set it lower")]
    hint = "a proxy in front must not gather answers (nginx: proxy_buffering off) and has to wait longer than"
    return [*found, Finding("note", "proxy", f"{hint} server.ping, {server.ping:g} s, for what comes next")]


def _telemetry(settings: Settings) -> list[Finding]:
    traces, metrics = settings.telemetry.traces, settings.telemetry.metrics
    return [
        _exported("traces", "otel", "on", wanted=traces, missing="problem"),
        # They are on unless somebody says no: who lacks the extra has not asked for them.
        _exported("metrics", "prometheus", "on, at /metrics", wanted=metrics, missing="note"),
    ]


def _exported(name: str, extra: str, text: str, *, wanted: bool, missing: Level) -> Finding:
    if not wanted:
        return Finding("ok", name, f"off (telemetry.{name})")
    if _installed(_EXPORTERS[name]):
        return Finding("ok", name, text)
    return Finding(missing, name, f"not installed: pip install 'agentflow-rx[{extra}]'")


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even what it is a part of
        return False
