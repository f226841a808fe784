"""What a client is told when it does not get what it asked for: a status, and `{"error": {"kind", "message"}}`.

It decides nothing: whoever refuses raises, and the middleware of `app` answers.
"""

import math
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from agentflow.errors import AgentflowError, RateLimitedError

RETRY_AFTER = 1  # seconds after which what was unavailable may be asked for again

# The status of each kind of error that is not a bad request; kinds that stand for a failed run are in `run_status`.
_STATUS: Mapping[str, int] = {
    "run_not_found": 404,
    "session_not_found": 404,
    "not_pending": 409,
    "outcome_pending": 409,
    "busy": 409,
    "request": 400,
    "arguments": 400,
    "config": 400,
    "rate_limited": 429,
}
_UNAVAILABLE = 503

# How a run ended that did not answer, where it is not that a model or a tool failed, which is 502.
_RUN_STATUS: Mapping[str, int] = {
    "timeout": 504,
    "store": 503,
    "shutdown": 503,
    "user": 409,
    "superseded": 409,
    "disconnect": 409,
    "rate_limited": 429,
    "unavailable": 503,
}


class Refused(AgentflowError):  # noqa: N818  reads as what happened
    """A request is not served: the status, a stable `kind`, a message for people, and headers that go with it."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = dict(headers or {})


def unknown_run(run_id: str) -> Refused:
    """No such run, or another user's: nobody is told which."""
    return Refused(404, "run_not_found", f"no run {run_id[:128]!r} is known here; it may have expired")


def unknown_session(session_id: str) -> Refused:
    """No such session, or another user's: nobody is told which."""
    return Refused(404, "session_not_found", f"no session {session_id[:128]!r} is known here; it may have expired")


def error_body(kind: str, message: str, **more: Any) -> dict[str, Any]:
    """The body of every answer that says no; `more` stands beside the error."""
    return {"error": {"kind": kind, "message": message}, **more}


def refusal(error: AgentflowError) -> web.Response:
    """The answer to a request that ended with this error."""
    if isinstance(error, Refused):
        return web.json_response(error_body(error.kind, str(error)), status=error.status, headers=error.headers)
    status = _STATUS.get(error.kind, _UNAVAILABLE)
    wait = RETRY_AFTER if status == _UNAVAILABLE else None
    if isinstance(error, RateLimitedError) and error.retry_after is not None:
        wait = max(math.ceil(error.retry_after), 1)
    headers = {"Retry-After": str(wait)} if wait is not None else {}
    return web.json_response(error_body(error.kind, str(error)), status=status, headers=headers)


def run_status(kind: str) -> int:
    """The status that tells of a run that ended `failed` with this kind of error, or `cancelled` for this reason."""
    return _RUN_STATUS.get(kind, 502)
