"""What tests share that hold for every route: what may be sent to each, and what a refusal looks like.

A route whose model has no example here makes those tests fail: whoever adds one says what may be sent to it.
"""

import re
from urllib.parse import urlencode

from agentflow.transports import bodies
from agentflow.transports.ag_ui import AguiQuery, RunAgentInput
from agentflow.transports.app import all_routes
from agentflow.transports.openai_messages import ChatCompletion
from agentflow.transports.websocket import SocketQuery

ROUTES = all_routes()
_NAME = re.compile(r"{[^}]*}")
SENT = tuple(route for route in ROUTES if route.body is not None)

EXAMPLES = {
    bodies.Identity: {},
    bodies.AskBody: {"input": "hello", "session_id": None, "metadata": {"a": [1]}, "detached": False},
    bodies.StreamQuery: {"input": "hello"},
    bodies.EventsQuery: {"after": 0},
    bodies.Page: {"limit": 1},
    bodies.Turns: {"limit": 1},
    bodies.Answer: {"text": "so", "question_id": "q"},
    bodies.Approve: {"call_id": "c", "arguments_hash": "h"},
    bodies.Reject: {"call_id": "c", "why": "no"},
    bodies.Amend: {"call_id": "c", "arguments": {"a": 1}},
    ChatCompletion: {"model": "agent", "messages": [{"role": "user", "content": "hello"}], "stream": False},
    AguiQuery: {},
    RunAgentInput: {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "1", "role": "user", "content": "hello"}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    },
    SocketQuery: {},
}

COMMANDS = {
    "run": {"input": "hello", "metadata": {"a": [1]}},
    "follow": {"run_id": "r", "after": 0},
    "cancel": {"run_id": "r"},
    "answer": {"run_id": "r", "text": "so"},
    "approve": {"run_id": "r", "call_id": "c", "arguments_hash": "h"},
    "reject": {"run_id": "r", "call_id": "c", "why": "no"},
    "amend": {"run_id": "r", "call_id": "c", "arguments": {"a": 1}},
}


def name_of(route):
    return f"{route.method} {route.path}"


def path_of(route, about):
    """The path of a route about something."""
    return _NAME.sub(lambda _: about, route.path)


def target(route, about="r", **query):
    """The address of a route, with what its path is about and with a query as it should be but for what is given."""
    path = route.path.replace("{id}", about).replace("{name:.+}", about)
    assert "{" not in path, f"say in every_route what stands in {path}"
    query = (EXAMPLES[route.query] if route.query else {}) | query
    return path_of(route, about) + ("?" + urlencode(query, errors="surrogatepass") if query else "")


def is_refusal(path, body):
    """Whether it is the one form of a refusal, or OpenAI's for those of its routes; with a text in each part."""
    members = ("code", "message", "param", "type") if path.startswith("/v1") else ("kind", "message")
    error = body.get("error")
    return isinstance(error, dict) and sorted(error) == sorted(members) and all(map(error.get, members[:2]))
