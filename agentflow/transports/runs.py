"""Runs that were begun: what each has come to, and what people decide about it.

Their events are read in `sse`; what follows from a decision is in the chain.
"""

from aiohttp import web

from agentflow.transports.adapter import Adapter, Decision
from agentflow.transports.auth import CALLER
from agentflow.transports.bodies import Amend, Answer, Approve, Identity, Reject, path_id, read_body, read_query
from agentflow.transports.routes import Handler, Route
from agentflow.transports.server import SERVER


async def snapshot(request: web.Request) -> web.Response:
    """`GET /api/runs/{id}`: the run as it is now."""
    query, server, run_id = read_query(request, Identity), request.app[SERVER], path_id(request)
    await server.check_run(request[CALLER].acting_for(query.user_id), run_id)
    view = await server.view(run_id)
    return web.json_response(view.snapshot())


async def cancel(request: web.Request) -> web.Response:
    """`POST /api/runs/{id}/cancel`."""
    body = await read_body(request, Identity)
    await _adapter(request, body).cancel(path_id(request))
    return _accepted(request)


def _deciding(model: type[Decision]) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        decision = await read_body(request, model)
        await _adapter(request, decision).decide(path_id(request), decision)
        return _accepted(request)

    return handle


def _adapter(request: web.Request, body: Identity) -> Adapter:
    return Adapter(request.app[SERVER], request[CALLER].acting_for(body.user_id))


def _accepted(request: web.Request) -> web.Response:
    """What was asked for is on its way; the run's events tell what came of it."""
    return web.json_response({"run_id": path_id(request)}, status=202)


def _post(verb: str, handler: Handler, model: type[Identity], summary: str) -> Route:
    return Route(method="POST", path=f"/api/runs/{{id}}/{verb}", handler=handler, summary=summary, body=model)


ROUTES = (
    Route(method="GET", path="/api/runs/{id}", handler=snapshot, summary="A run as it is now.", query=Identity),
    _post("cancel", cancel, Identity, "End a run."),
    _post("answer", _deciding(Answer), Answer, "Answer a question of a run."),
    _post("approve", _deciding(Approve), Approve, "Let a tool call run that waits for approval."),
    _post("reject", _deciding(Reject), Reject, "Do not let a tool call run that waits for approval."),
    _post("amend", _deciding(Amend), Amend, "Give a tool call other arguments."),
)
