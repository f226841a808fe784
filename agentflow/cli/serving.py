"""`agentflow serve` and `agentflow keys`: one process that serves agents until it is told to end, and its signals.

What is served is in `transports`; addresses and keys come from the settings.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from agentflow.agent import Agent
from agentflow.cli.kept import Tools
from agentflow.cli.output import complain, print_lines
from agentflow.config import build_agent, known_secrets, load_agents, open_store, trace_runs
from agentflow.errors import ConfigError
from agentflow.observability.gates import Gates
from agentflow.observability.logs import logged
from agentflow.settings import Settings
from agentflow.stores.base import Store
from agentflow.transports.app import create_app, drain
from agentflow.transports.auth import check_bind, new_key
from agentflow.transports.server import SERVER

_CLOSING = 5.0  # seconds in which open connections may end, after everything that they wait for has
_SILENCE = 75.0  # seconds a connection is kept that sends no request, or none to its end; proxies keep theirs for 60
_LINGERING = 2.0  # seconds for which what is left of a refused request is taken, so that its client hears why
_COLLECTED = 20_000  # objects made and not yet freed after which the garbage collector looks at them

serving_app = typer.Typer()
keys_app = typer.Typer(no_args_is_help=True, help="Keys of the server.")
serving_app.add_typer(keys_app, name="keys")


@serving_app.command()
def serve(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:AGENT",
            help="An Agent, or a list of them, in a module (its 'agent' if no name is given); without it one as the "
            "settings say.",
            show_default=False,
        ),
    ] = None,
    *,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="server.host")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any.", show_default="server.port")
    ] = None,
    tools: Tools = None,
) -> int:
    """Serve agents over HTTP, until SIGTERM or Ctrl-C.

    Agents of a module keep their runs in the store that they were given, else in memory; without a module runs are kept
    in a file in your home unless memory.store says otherwise. Those of a process that died are resumed. At the end runs
    get server.shutdown_grace, then they are cancelled. A second signal ends it at once. SIGHUP reads the server's keys
    anew, and ends what belongs to keys that are gone.
    """
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = Settings()
    settings = settings.model_copy(update={"server": settings.server.model_copy(update=given)})
    check_bind(settings.server.host, settings.server)
    store: Store | None = None
    if target is None:
        store = open_store(settings, "sqlite")
        agents = [build_agent(settings, tools=tools or (), store=store)]
    elif tools:
        raise ConfigError(f"the agents of {target!r} have their own tools: leave --tools out")
    else:
        agents = load_agents(target, settings)
    end_traces = trace_runs(settings)
    try:
        asyncio.run(_serve(agents, store, settings))
    finally:
        end_traces()
    if any(agent.abandoned for agent in agents):
        os._exit(0)  # a tool ignores its cancel: an ordinary end would wait for it
    return 0


async def _serve(agents: Sequence[Agent], store: Store | None, settings: Settings) -> None:
    app, telemetry = create_app(agents, settings), settings.telemetry
    secrets = known_secrets(settings)
    with logged(telemetry.logs, app[SERVER].buses(), content=telemetry.log_content, secrets=secrets):
        await _serve_app(app, agents, store, settings)


async def _serve_app(app: web.Application, agents: Sequence[Agent], store: Store | None, settings: Settings) -> None:
    runner = http_runner(app)
    try:
        await runner.setup()
        await app[SERVER].recover()
        app[SERVER].owner.spawn(app[SERVER].keep_recovering(), name="agentflow recovery")
        spare_the_collector()
        address = await _listen(runner, settings.server.host, settings.server.port)
        with contextlib.suppress(NotImplementedError):  # a platform without these signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _read_keys, app)
        print_lines([f"serving {', '.join(app[SERVER].agents)} on {address}"])
        sys.stdout.flush()
        await _told_to_end()
        await drain(app)
    finally:
        await runner.cleanup()
        for agent in agents:
            await agent.aclose()
        for gate in {agent.gate for agent in agents if isinstance(agent.gate, Gates)}:
            await gate.aclose()
        if store is not None:
            await store.aclose()


def spare_the_collector() -> None:
    """Let the garbage collector go round less often, and not through what this process was begun with.

    A full round stops every stream: for about 100 ms with 500 conversations, of which 30 ms are left so
    (`benchmarks/serving.py`). For a process that only serves; an application of your own may call it once it is set up.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED, 10, 10)


def http_runner(app: web.Application) -> web.AppRunner:
    """What speaks HTTP for an application; not set up yet."""
    return web.AppRunner(
        app,
        access_log=None,  # the query of an address may hold a ticket
        logger=_logger(),
        handler_cancellation=True,
        keepalive_timeout=_SILENCE,
        shutdown_timeout=_CLOSING,
        lingering_time=_LINGERING,
    )


def _logger() -> logging.Logger:
    """aiohttp's, but silent on requests that are no HTTP: anybody can send them, and it would repeat what they say."""
    logger = logging.getLogger("agentflow.http")
    logger.addFilter(_is_ours)
    return logger


def _is_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


async def _listen(runner: web.AppRunner, host: str, port: int) -> str:
    """Begin to listen; the address, with the port that it came to be. Raises `ConfigError`."""
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{runner.addresses[0][1]}"


async def _told_to_end() -> None:
    """Wait for the first signal; the next one has its ordinary effect."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, told.set)
    await told.wait()
    for number in signals:
        with contextlib.suppress(NotImplementedError):
            loop.remove_signal_handler(number)


def _read_keys(app: web.Application) -> None:
    try:
        app[SERVER].replace_keys(Settings().server.keys)
    except ConfigError as error:
        complain(f"the keys stay as they were: {error}")


@keys_app.callback()
def _keys() -> None:
    """Keys of the server."""


@keys_app.command("new")
def new(
    *,
    user: Annotated[str, typer.Option(help="Whom the key stands for.")],
    operator: Annotated[bool, typer.Option("--operator", help="It may see all runs.", metavar="")] = False,
) -> int:
    """Make a key, and show what the settings get of it."""
    key_id, key, key_hash = new_key()
    scopes = ["user", "operator"] if operator else ["user"]
    Settings(server={"keys": {key_id: {"hash": key_hash, "user": user, "scopes": scopes}}})  # checked like any other
    print_lines(
        [
            f"the key, which is shown only now: {key}",
            "",
            f"[server.keys.{key_id}]",
            f'hash = "{key_hash}"',
            f'user = "{user}"',
            f"scopes = {json.dumps(scopes)}",
        ]
    )
    return 0
