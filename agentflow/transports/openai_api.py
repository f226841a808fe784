"""`/v1/models` and `/v1/chat/completions`: every client of OpenAI can talk to an agent, whose name is the model.

The messages of a request are the conversation, and nothing of it is kept when it is answered: chat pages edit what was
said, and ask again. With `session_id` in the metadata it is a session that the server keeps, of whose messages only the
user's last count. The agent's instructions stay its own: those that a client sends are what its user says.

Chat pages ask for titles and the like beside the conversation. Such a request must not have effects: with `-raw` behind
the name of the model, or with `tool_choice: "none"`, the agent answers without its tools, by its first model.

A question is the answer, and the user's next message answers it. A call that waits for approval cannot be approved
here; in a session it may be on the other routes, else the run is given up. A client that leaves has stopped its run.

How a run is told is in `openai_encoding`, what is sent in `openai_messages`.
"""

import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web

from agentflow.agent import Agent
from agentflow.errors import AgentflowError, StoreError
from agentflow.events import QuestionEvent
from agentflow.stores.base import SessionKey
from agentflow.transports.adapter import Adapter
from agentflow.transports.auth import CALLER, Caller
from agentflow.transports.bodies import Answer, Identity, path_id, read_body, read_query, validated
from agentflow.transports.connections import ConnectionEnded
from agentflow.transports.conversation import Said, Telling, asked_id, said, waiting
from agentflow.transports.openai_encoding import CompletionEncoder, error_body, model, models
from agentflow.transports.openai_messages import ChatCompletion, Unfit, conversation, keep
from agentflow.transports.refusals import RETRY_AFTER, Refused, refusal, run_status
from agentflow.transports.routes import Route
from agentflow.transports.server import SERVER, Server
from agentflow.transports.toolless import RAW
from agentflow.transports.views import RunView

logger = logging.getLogger(__name__)

_KEPT_HEADERS = ("Allow", "Connection", "Retry-After", "WWW-Authenticate")


async def list_models(request: web.Request) -> web.Response:
    """`GET /v1/models`."""
    read_query(request, Identity)
    return web.json_response(models(_names(request.app[SERVER])))


async def one_model(request: web.Request) -> web.Response:
    """`GET /v1/models/{id}`."""
    read_query(request, Identity)
    name = path_id(request)
    _agent(request.app[SERVER], name)
    return web.json_response(model(name))


async def completions(request: web.Request) -> web.StreamResponse:
    """`POST /v1/chat/completions`: the whole answer, or chunks of it."""
    server = request.app[SERVER]
    body = await read_body(request, ChatCompletion, server.settings.server.max_body)
    body.check()
    async with _begun(request, server, body) as telling:
        usage = body.stream_options is not None and body.stream_options.include_usage
        created = int(server.clock.wall())
        encoder = CompletionEncoder(telling.view.run_id, body.model, created, include_usage=usage)
        if body.stream:
            return await telling.stream(request, encoder, done=b"[DONE]")
        return await _whole(telling, encoder)


async def _whole(telling: Telling, encoder: CompletionEncoder) -> web.Response:
    view = telling.view
    try:
        async with aclosing(telling.pages()) as pages:
            async for _ in pages:
                pass
    except ConnectionEnded:
        raise Refused(503, "unavailable", "the server ends this connection") from None
    if view.error is None:
        return web.json_response(encoder.whole(view))
    status = run_status(view.error.kind)
    # Official clients send it again by themselves, which would do again what was done.
    again = "true" if view.error.retryable and not view.tools else "false"
    body = error_body(status, view.error.kind, view.error.message)
    return web.json_response(body, status=status, headers={"x-should-retry": again})


@asynccontextmanager
async def _begun(request: web.Request, server: Server, body: ChatCompletion) -> AsyncIterator[Telling]:
    """The run that answers. Raises `Refused` and what beginning a run does."""
    turns, content = conversation(body.messages)
    agent, has_tools = _agent(server, body.model)
    metadata = dict(body.metadata or {})
    user_id, session_id = (_text(metadata.pop(name, None), name) for name in ("user_id", "session_id"))
    caller = request[CALLER].acting_for(user_id)
    key = SessionKey(session_id or str(uuid.uuid4()), caller.user_id)
    if server.draining:
        raise Refused(503, "unavailable", "the server shuts down; ask again", {"Retry-After": str(RETRY_AFTER)})
    message = said(content, session_id=key.session_id, agent=agent.name, metadata=metadata)
    async with AsyncExitStack() as stack:
        connection = stack.enter_context(server.connections.open(request, caller, server.settings.server.ping))
        if session_id is not None and (view := await _answered(server, caller, key, message)) is not None:
            decided = frozenset(map(asked_id, view.pending))
            reader, chain = server.reader(view.run_id, view.seq), server.chain(view.run_id)
            yield Telling(server, connection, reader, chain, view, decided)
            return
        if session_id is None:
            stack.push_async_callback(_forget, server, key)
            memory = server.settings.memory
            # So many turns are shown without having one's model summarise what is forgotten at once.
            most = None if memory.strategy == "full" else max(1, memory.turns - 1)
            await keep(server.store, key, turns, most)
        if has_tools and not body.uses_no_tools:
            run_id = await server.begin(caller, message, None)
            chain = server.chain(run_id)
            ends = session_id is None
        else:
            alone = await stack.enter_async_context(server.without_tools(agent))
            chain = await server.admit(caller, partial(alone.start, message.request(caller.user_id)))
            run_id, ends = chain.run_id, True
        reader = server.reader(run_id)
        if ends and chain is not None:
            stack.callback(chain.cancel, "disconnect")  # also one that waits for people: nobody will come back to it
        yield Telling(server, connection, reader, chain, RunView(run_id))


async def _answered(server: Server, caller: Caller, key: SessionKey, message: Said) -> RunView | None:
    """The run of the session whose question the message answers. Raises `Refused` where it waits for anything else."""
    waits = await waiting(server, key)
    if waits is None:
        return None
    view = waits[0]
    match view.pending:
        case (QuestionEvent(question_id=question_id),):
            answer = validated(Answer, {"text": message.input, "question_id": question_id}, strict=True)
            await Adapter(server, caller).decide(view.run_id, answer)
            return view
        case pending:
            names = ", ".join(map(asked_id, pending))
            raise Refused(409, "busy", f"run {view.run_id!r} of this session waits for a decision on {names}")


async def _forget(server: Server, key: SessionKey) -> None:
    """Drop a conversation that is the client's to keep; a run that still goes on is asked to end."""
    try:
        await server.store.delete_session(key)
    except StoreError as error:
        logger.warning("session %s could not be deleted: %s", key.session_id, error)


def _names(server: Server) -> list[str]:
    """The models: every agent, and those that have tools also without them."""
    raw = [f"{name}{RAW}" for name, agent in server.agents.items() if len(agent.tools)]
    return list(dict.fromkeys((*server.agents, *raw)))


def _agent(server: Server, name: str) -> tuple[Agent, bool]:
    """The agent that a model's name means, and whether it has its tools. Raises `Unfit` (404)."""
    if name in server.agents:
        return server.agents[name], True
    if name in _names(server):
        return server.agents[name.removesuffix(RAW)], False
    message = f"The model {name[:140]!r} does not exist or you do not have access to it."
    raise Unfit("model_not_found", message, "model", status=404)


def _text(value: Any, name: str) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    raise Unfit("invalid_type", f"Invalid type for 'metadata.{name}': expected a string.", f"metadata.{name}")


def is_asked(request: web.Request) -> bool:
    """Whether the address is one of this module, or would be if there were such a route."""
    addresses = (resource.canonical for resource in request.app.router.resources())
    root = next(address.removesuffix("models") for address in addresses if address.endswith("/v1/models"))
    return request.path.startswith(root)


def refusal_of(error: AgentflowError) -> web.Response:
    """The answer to a request that ended with this error, in the form of OpenAI."""
    told = refusal(error)
    headers = {name: told.headers[name] for name in _KEPT_HEADERS if name in told.headers}
    body = error_body(told.status, error.kind, str(error), getattr(error, "param", None))
    return web.json_response(body, status=told.status, headers=headers)


ROUTES = (
    Route(
        method="GET",
        path="/v1/models",
        handler=list_models,
        summary="The agents, as OpenAI lists models.",
        query=Identity,
    ),
    Route(
        method="GET",
        path="/v1/models/{id}",
        handler=one_model,
        summary="An agent, as OpenAI shows a model.",
        query=Identity,
    ),
    Route(
        method="POST",
        path="/v1/chat/completions",
        handler=completions,
        summary="Ask an agent as OpenAI's chat completions are asked: the whole answer, or chunks of it.",
        body=ChatCompletion,
    ),
)
