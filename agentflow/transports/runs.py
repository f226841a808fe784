"""Runs that were begun: what each has come to, and what people decide about it.

Their events are read in `sse`; what follows from a decision is in the chain.
"""

from typing import TypeAlias

from aiohttp import web

from agentflow.chain import AgentChain
from agentflow.errors import NotPendingError
from agentflow.transports.auth import CALLER, Caller
from agentflow.transports.bodies import Amend, Answer, Approve, Identity, Reject, path_id, read_body, read_query
from agentflow.transports.routes import Handler, Route
from agentflow.transports.server import SERVER, Server

Decision: TypeAlias = Answer | Approve | Reject | Amend


async def snapshot(request: web.Request) -> web.Response:
    """`GET /api/runs/{id}`: the run as it is now."""
    query, server, run_id = read_query(request, Identity), request.app[SERVER], path_id(request)
    await server.check_run(request[CALLER].acting_for(query.user_id), run_id)
    view = await server.view(run_id)
    return web.json_response(view.snapshot())


async def cancel_run(server: Server, caller: Caller, run_id: str) -> None:
    """End a run, wherever it is worked on; one that has ended is left as it is. Raises `Refused` (404)."""
    await server.check_run(caller, run_id)
    chain = server.chain(run_id)
    if chain is not None:
        chain.cancel("user")
    else:
        await server.store.request_cancel(run_id, "user")


async def decide(server: Server, caller: Caller, run_id: str, decision: Decision) -> None:
    """Tell a run what a person has decided. Raises `Refused` (404), `NotPendingError`, `ToolArgumentsError`."""
    await server.check_run(caller, run_id)
    chain = server.chain(run_id)
    if chain is None:
        raise NotPendingError(f"run {run_id!r} waits for nothing here: it has ended, or another process works on it")
    _tell(chain, decision, caller.user_id)


def _tell(chain: AgentChain, decision: Decision, by: str | None) -> None:
    match decision:
        case Answer():
            chain.answer(decision.text, decision.question_id, by=by)
        case Approve():
            chain.approve(decision.call_id, decision.arguments_hash, by=by)
        case Reject():
            chain.reject(decision.call_id, decision.why, by=by)
        case Amend():
            chain.amend(decision.call_id, decision.arguments, by=by)


async def cancel(request: web.Request) -> web.Response:
    """`POST /api/runs/{id}/cancel`."""
    body = await read_body(request, Identity)
    await cancel_run(request.app[SERVER], request[CALLER].acting_for(body.user_id), path_id(request))
    return _accepted(request)


def _deciding(model: type[Decision]) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        decision = await read_body(request, model)
        caller = request[CALLER].acting_for(decision.user_id)
        await decide(request.app[SERVER], caller, path_id(request), decision)
        return _accepted(request)

    return handle


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
