"""Whole answers, what agents there are, sessions, tickets, and whether the server is well.

Runs that go on are in `runs`, streams in `sse`.
"""

import asyncio
import importlib.metadata
from typing import Any

import msgspec
from aiohttp import web

from agentflow.agent import Agent
from agentflow.errors import StoreError
from agentflow.events import CancelledEvent
from agentflow.messages import Message
from agentflow.stores.base import SessionInfo, SessionKey, Turn
from agentflow.transports.auth import CALLER, TICKET_SECONDS
from agentflow.transports.bodies import AskBody, Identity, Page, Turns, path_id, read_body, read_query, request_id
from agentflow.transports.connections import ConnectionEnded
from agentflow.transports.refusals import Refused, error_body, run_status, unknown_session
from agentflow.transports.routes import Route
from agentflow.transports.server import SERVER, Server
from agentflow.transports.views import RunView

_STORE_SECONDS = 2.0  # in which a store that is well has answered
_MAX_TITLE = 80  # characters


async def chat(request: web.Request) -> web.Response:
    """`POST /api/agent/chat`: the whole answer, or 202 and what the run waits for."""
    server, ask = request.app[SERVER], await read_body(request, AskBody)
    caller = request[CALLER].acting_for(ask.user_id)
    run_id = await server.begin(caller, ask, request_id(request, ask))
    view, reader = RunView(run_id), server.reader(run_id)
    with (
        server.presence.reading(run_id) as saw,
        server.connections.open(request, caller, server.settings.server.ping) as connection,
    ):
        try:
            while view.end is None:
                events = await connection.wait(reader.page)
                view.take(events)
                saw(events)
                if view.is_suspended and await server.is_at_end(run_id, view.seq):
                    break
        except ConnectionEnded:
            raise Refused(503, "unavailable", f"the server ends this connection; the run is {run_id!r}") from None
    return _answer(view)


def _answer(view: RunView) -> web.Response:
    whose = {"session_id": view.session_id, "run_id": view.run_id}
    if view.error is not None:
        kind = "cancelled" if isinstance(view.end, CancelledEvent) else view.error.kind
        return _json(error_body(kind, view.error.message, **whose), status=run_status(view.error.kind))
    told = {
        "content": view.text,
        **whose,
        "tool_history": view.tools,
        "input_tokens": view.usage.input_tokens,
        "output_tokens": view.usage.output_tokens,
    }
    if view.end is None:
        return _json(told | {"pending": view.pending}, status=202)
    return _json(told)


async def agents(request: web.Request) -> web.Response:
    """`GET /api/agents`: what there is to talk to, and as which user one does."""
    caller = request[CALLER].acting_for(read_query(request, Identity).user_id)
    server = request.app[SERVER]
    models = server.settings.model
    allowed = {"default": models.default, "allowed": models.allowed, "aliases": sorted(server.settings.aliases)}
    told = [_agent(agent) for agent in server.agents.values()]
    return _json({"agents": told, "models": allowed, "user": caller.user_id})


def _agent(agent: Agent) -> dict[str, Any]:
    return {
        "name": agent.name,
        "description": agent.description,
        "examples": agent.examples,
        "tools": [{**msgspec.to_builtins(tool.spec), "approval": bool(tool.approval)} for tool in agent.tools],
    }


async def sessions(request: web.Request) -> web.Response:
    """`GET /api/sessions`: the caller's, the newest first."""
    query, server = read_query(request, Page), request.app[SERVER]
    caller = request[CALLER].acting_for(query.user_id)
    found = await server.store.list_sessions(caller.user_id, before=query.before, limit=query.limit)
    return _json({"sessions": [await _listed(server, info) for info in found]})


async def _listed(server: Server, info: SessionInfo) -> dict[str, Any]:
    """A session with its title, the first thing that was said, and the `state` of the run that goes on in it."""
    turns = await server.store.read_turns(info.key, 0, 1)
    run = await server.view(info.active_run) if info.active_run is not None else None
    first = turns[0].messages[0].text if turns and turns[0].messages else ""
    said = first or (run.input if run is not None else "")
    title = " ".join(said.split())[:_MAX_TITLE]
    return _session(info) | {"title": title, "state": run.state if run is not None else None}


async def session(request: web.Request) -> web.Response:
    """`GET /api/sessions/{id}`: its turns, the oldest first."""
    query, server = read_query(request, Turns), request.app[SERVER]
    key = SessionKey(path_id(request), request[CALLER].acting_for(query.user_id).user_id)
    info = await server.store.find_session(key)
    if info is None:
        raise unknown_session(key.session_id)
    turns = await server.store.read_turns(key, query.after, query.limit)
    return _json(_session(info) | {"turns": [_turn(turn) for turn in turns]})


async def delete_session(request: web.Request) -> web.Response:
    """`DELETE /api/sessions/{id}`: forget it, and ask its run to end."""
    query, server = read_query(request, Identity), request.app[SERVER]
    key = SessionKey(path_id(request), request[CALLER].acting_for(query.user_id).user_id)
    info = await server.store.find_session(key)
    if info is None:
        raise unknown_session(key.session_id)
    await server.store.delete_session(key)
    return web.Response(status=204)


def _session(info: SessionInfo) -> dict[str, Any]:
    return {
        "session_id": info.key.session_id,
        "number": info.number,
        "turns_stored": info.version,
        "used_at": info.used_at,
        "active_run": info.active_run,
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "run_id": turn.run_id,
        "outcome": turn.outcome,
        "messages": [_message(message) for message in turn.messages],
    }


def _message(message: Message) -> dict[str, Any]:
    """What people may see of a message: not what is the provider's own."""
    calls = [
        {"call_id": call.call_id, "name": call.name, "raw_arguments": call.raw_arguments} for call in message.tool_calls
    ]
    return {
        "role": message.role,
        "content": message.text,
        "reasoning": message.reasoning,
        "tool_calls": calls,
        "call_id": message.call_id,
    }


async def ticket(request: web.Request) -> web.Response:
    """`POST /api/tickets`: for one request of a browser's EventSource or WebSocket, which send no key."""
    await read_body(request, Identity)
    issued = request.app[SERVER].tickets.issue(request[CALLER])
    return _json({"ticket": issued, "expires_in": TICKET_SECONDS})


async def healthz(request: web.Request) -> web.Response:
    """`GET /healthz`: the process lives."""
    return _json({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """`GET /readyz`: new work is taken, and the store answers."""
    server = request.app[SERVER]
    if server.draining:
        raise Refused(503, "unavailable", "the server shuts down")
    try:
        async with asyncio.timeout(_STORE_SECONDS):
            await server.store.list_runs(limit=1)
    except (TimeoutError, StoreError):
        raise Refused(503, "store", "the store does not answer") from None
    return _json({"status": "ok"})


def version() -> str:
    """The version of agentflow."""
    return importlib.metadata.version("agentflow-rx")


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


ROUTES = (
    Route(
        method="POST",
        path="/api/agent/chat",
        handler=chat,
        summary="Ask an agent, and get the whole answer, or what it waits for (202).",
        body=AskBody,
    ),
    Route(
        method="GET",
        path="/api/agents",
        handler=agents,
        summary="The agents and their tools, and the models that may be asked for.",
        query=Identity,
    ),
    Route(
        method="GET",
        path="/api/sessions",
        handler=sessions,
        summary="The caller's sessions, the newest first.",
        query=Page,
    ),
    Route(
        method="GET",
        path="/api/sessions/{id}",
        handler=session,
        summary="A session and its turns, the oldest first.",
        query=Turns,
    ),
    Route(
        method="DELETE",
        path="/api/sessions/{id}",
        handler=delete_session,
        summary="Forget a session, and end its run.",
        query=Identity,
    ),
    Route(
        method="POST",
        path="/api/tickets",
        handler=ticket,
        summary="A ticket for one request of a browser that cannot send a key: as `ticket` in its query, within 30 s.",
        body=Identity,
    ),
    Route(method="GET", path="/healthz", handler=healthz, summary="Whether the process lives.", scope="open"),
    Route(method="GET", path="/readyz", handler=readyz, summary="Whether new work is taken.", scope="open"),
)
