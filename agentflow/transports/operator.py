"""What operators watch: the runs in flight as they are now, and the events of all runs as they happen.

What adds up to a snapshot is in `observability.overview`; this process's runs only, each process having its own.
"""

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from agentflow.observability.gates import Gates
from agentflow.transports.auth import CALLER
from agentflow.transports.bodies import Identity, read_query
from agentflow.transports.connections import ConnectionEnded
from agentflow.transports.encoding import read_event_id
from agentflow.transports.refusals import Refused
from agentflow.transports.routes import Route
from agentflow.transports.server import SERVER, Server
from agentflow.transports.sse import Stream


async def snapshot(request: web.Request) -> web.Response:
    """`GET /api/operator/snapshot`: what a dashboard needs when it is loaded, and after a gap."""
    read_query(request, Identity)
    body = msgspec.json.encode(seen(request.app[SERVER]))
    return web.Response(body=body, content_type="application/json")


async def health(request: web.Request) -> web.Response:
    """`GET /api/operator/health`: what no event tells, for a dashboard that asks every few seconds."""
    read_query(request, Identity)
    body = msgspec.json.encode(used(request.app[SERVER]))
    return web.Response(body=body, content_type="application/json")


def seen(server: Server) -> dict[str, Any]:
    """The process as it is now. `position` is that of the firehose: what comes after it is not yet counted here."""
    overview = server.overview
    return used(server) | {
        "position": server.firehose.position,
        "agents": list(server.agents),
        "runs": overview.rows(lambda run_id: server.chain(run_id) is not None),
        "unseen": overview.unseen,
        "recent": overview.recent(),
        "totals": overview.totals,
    }


def used(server: Server) -> dict[str, Any]:
    """What the process has of pools, limits and connections, and how much of it is taken."""
    return {
        "at": datetime.fromtimestamp(server.clock.wall(), UTC).isoformat(timespec="microseconds")[:-6] + "Z",
        "pools": [
            {"agent": agent.name} | {name: getattr(pool, name) for name in pool.__dataclass_fields__}
            for agent in server.agents.values()
            for pool in agent.pools
        ],
        "limits": _limits(server),
        "connections": len(server.connections),
        "readers": len(server.readings),
        "slow_readers": server.readings.slow(),
        "firehose": {"readers": server.firehose.readers, "missed": server.firehose.missed},
        "draining": server.draining,
    }


def _limits(server: Server) -> dict[str, Any]:
    """What waits for limits and how often each has refused, and the breakers; of all gates and of the server's keys."""
    gates = {id(agent.gate): agent.gate for agent in server.agents.values() if isinstance(agent.gate, Gates)}
    seen = [gate.snapshot() for gate in gates.values()]
    if server.quotas is not None:
        seen.append(server.quotas.snapshot())
    return {
        "waiting": sum(one["waiting"] for one in seen),
        "refused": sum((Counter(one["refused"]) for one in seen), Counter()),
        "breakers": [breaker for one in seen for breaker in one["breakers"]],
    }


async def events(request: web.Request) -> web.StreamResponse:
    """`GET /api/events`: the events of all runs from now on, or after `Last-Event-ID`."""
    server, firehose = request.app[SERVER], request.app[SERVER].firehose
    read_query(request, Identity)
    after = _position(request, server)
    settings = server.settings.server
    stream = Stream(request, settings)
    firehose.readers += 1
    try:
        with (
            server.connections.open(request, request[CALLER], settings.ping) as connection,
            suppress(ConnectionEnded, ConnectionError),
        ):
            await stream.open(f"{firehose.epoch}:{after}")
            while True:
                page, after = await connection.wait(partial(firehose.page, after), stream.ping)
                await stream.send(b"".join(page))
    finally:
        firehose.readers -= 1
    return stream.response


def _position(request: web.Request, server: Server) -> int:
    text = request.headers.get("Last-Event-ID") or server.firehose.position
    position = read_event_id(text)
    if position is None:
        raise Refused(400, "request", "Last-Event-ID is not a position in these events: a process, a colon, a number")
    return server.firehose.after(*position)


ROUTES = (
    Route(
        method="GET",
        path="/api/operator/snapshot",
        handler=snapshot,
        summary="The runs in flight, those that ended last, and what they use.",
        scope="operator",
        query=Identity,
    ),
    Route(
        method="GET",
        path="/api/operator/health",
        handler=health,
        summary="The pools, limits, breakers and slow readers as they are now.",
        scope="operator",
        query=Identity,
    ),
    Route(
        method="GET",
        path="/api/events",
        handler=events,
        summary="The events of all runs but deltas, as Server-Sent Events.",
        scope="operator",
        query=Identity,
        answer="text/event-stream",
    ),
)
