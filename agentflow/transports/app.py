"""The application: all routes, what holds for each answer, and how it ends.

What the routes do is in the modules that list them; how a process listens and hears signals is the command's business.
Agents that are given stay who gave them's to close.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler
from reactivex.disposable import CompositeDisposable

from agentflow.agent import Agent
from agentflow.chain.tracing import incoming
from agentflow.errors import AgentflowError
from agentflow.settings import Settings
from agentflow.streams import Clock
from agentflow.transports import ag_ui, metrics, openai_api, operator, pages, rest, runs, sse, websocket
from agentflow.transports.auth import SECURITY_HEADERS, allowed_origin, check_host
from agentflow.transports.metrics import measured
from agentflow.transports.refusals import Refused, refusal
from agentflow.transports.routes import Route, add, describe
from agentflow.transports.server import SERVER, Server

logger = logging.getLogger(__name__)

_LAST_WORDS = 2.0  # seconds in which runs that are cancelled at the end, and their readers, come to their ends

_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key, Last-Event-ID",
    "Access-Control-Max-Age": "600",
}


def create_app(
    agents: Sequence[Agent], settings: Settings | None = None, *, clock: Clock | None = None
) -> web.Application:
    """An application that serves these agents, the first by default, as `server.*` of the settings says.

    The agents share a store and have names of their own, else `ConfigError` is raised. When the application shuts down
    it takes no new work, lets runs end within `server.shutdown_grace`, and cancels the rest (`shutdown`) but for those
    that wait for people.
    """
    app = web.Application(middlewares=[_guard])
    server = app[SERVER] = Server(agents, settings if settings is not None else Settings(), clock)
    for route in all_routes():
        add(app, route)
    app.on_response_prepare.append(partial(_add_headers, server))
    app.on_shutdown.append(drain)
    app.cleanup_ctx.append(_serving)
    return app


def setup(
    app: web.Application, agents: Sequence[Agent], settings: Settings | None = None, *, prefix: str = "/ai"
) -> None:
    """Serve these agents below `prefix` of an application that is there already, and touch nothing else of it."""
    app.add_subapp(prefix, create_app(agents, settings))


async def drain(app: web.Application) -> None:
    """Take no new work, let the runs end within the grace, cancel the others, and end what is still open.

    Runs that wait for people stay as they are. Doing it again is allowed.
    """
    server = app[SERVER]
    server.draining = True
    try:
        async with asyncio.timeout(server.settings.server.shutdown_grace):
            await server.presence.settled()
    except TimeoutError:
        server.presence.cancel("shutdown")
        await _within(_LAST_WORDS, server.presence.settled())
    await _within(_LAST_WORDS, server.connections.closed())  # those whose runs have ended say so, and close
    server.connections.end()


async def _within(seconds: float, wait: Awaitable[None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wait


async def openapi(request: web.Request) -> web.Response:
    """`GET /openapi.json`: all routes, from the models that their handlers read."""
    return web.json_response(describe(all_routes(), rest.version()))


def all_routes() -> tuple[Route, ...]:
    """Every route that an application has."""
    own = Route(method="GET", path="/openapi.json", handler=openapi, summary="This description.")
    modules = (rest, runs, sse, websocket, ag_ui, openai_api, operator, metrics, pages)
    return (*(route for module in modules for route in module.ROUTES), own)


async def _serving(app: web.Application) -> AsyncIterator[None]:
    server = app[SERVER]
    sees = [server.presence.see, server.overview.see, server.firehose.see]
    if server.quotas is not None:
        sees.append(server.quotas.see)
    taps = CompositeDisposable([bus.attach(see) for bus in server.buses() for see in sees])
    try:
        with measured(server):
            yield
    finally:
        taps.dispose()
        server.presence.close()
        await server.owner.aclose()
        if server.quotas is not None:
            await server.quotas.aclose()


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let in whom the hosts and origins allow, and answer every error in the one form."""
    settings = request.app[SERVER].settings.server
    try:
        check_host(request, settings)
        origin = allowed_origin(request, settings)
        if origin is not None and request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return web.Response(status=204, headers=_PREFLIGHT)
        with incoming(request.headers):
            return await handler(request)
    except AgentflowError as error:
        return _refused(request, error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        kept = {name: value for name, value in error.headers.items() if name == "Allow"}
        kind = error.reason.lower().replace(" ", "_")
        return _refused(request, Refused(error.status, kind, error.reason, kept))
    except ConnectionError:
        return web.Response(status=499)  # nobody reads it
    except Exception:  # a fault of ours: told as such, and the traceback is ours to read
        logger.exception("a request for %s %s failed", request.method, request.match_info.route.resource)
        return _refused(request, Refused(500, "internal", "the server failed; its log says why"))


def _refused(request: web.Request, error: AgentflowError) -> web.Response:
    return openai_api.refusal_of(error) if openai_api.is_asked(request) else refusal(error)


async def _add_headers(server: Server, request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
    origin = request.headers.get("Origin")
    allowed = server.settings.server.allowed_origins
    if allowed:
        response.headers["Vary"] = "Origin"
    if origin in allowed:
        response.headers["Access-Control-Allow-Origin"] = origin
