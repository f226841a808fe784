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
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from agentflow.agent import Agent
from agentflow.errors import AgentflowError, ConfigError, StoreError
from agentflow.events import QuestionEvent
from agentflow.stores.base import SessionKey
from agentflow.transports.adapter import Adapter
from agentflow.transports.auth import CALLER, Caller
from agentflow.transports.bodies import Answer, Identity, path_id, read_body, read_query, validated
from agentflow.transports.connections import Connection, ConnectionEnded
from agentflow.transports.conversation import Said, Telling, said, session_of, waiting
from agentflow.transports.openai_encoding import CompletionEncoder, error_body, model, models
from agentflow.transports.openai_messages import ChatCompletion, Unfit, conversation, keep
from agentflow.transports.refusals import RETRY_AFTER, Refused, refusal, run_status
from agentflow.transports.routes import Route
from agentflow.transports.server import SERVER, Server
from agentflow.transports.views import RunView

logger = logging.getLogger(__name__)

_RAW = "-raw"  # behind the name of an agent: without its tools


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
    server, body = request.app[SERVER], await read_body(request, ChatCompletion)
    body.check()
    metadata = dict(body.metadata or {})
    caller = request[CALLER].acting_for(_text(metadata, "user_id"))
    agent, has_tools = _agent(server, body.model)
    ...
