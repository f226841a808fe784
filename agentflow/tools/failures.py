"""What a failed call means: its status, what the model is told, and whether the failure may pass.

It runs nothing and retries nothing; when there is another attempt is decided in `retries`.
"""

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from agentflow.errors import AgentflowError, ToolArgumentsError, ToolError, ToolFailedError, ToolTimeoutError
from agentflow.events import ErrorInfo, ToolStatus
from agentflow.messages import clean_text
from agentflow.tools.honesty import ReportedFailureError
from agentflow.tools.registry import Tool
from agentflow.tools.upstream import is_rate_limit, retry_after, server_error

Cause: TypeAlias = Literal["", "rate_limit", "timeout", "upstream", "transient"]

_MAX_MESSAGE = 500  # characters of an error that the model is told
_MAX_LINKS = 10  # exceptions followed back to what caused them

_KEYS = re.compile(
    r"\b(?:(?:sk|pk|rk|gh[a-z]|xox[a-z]|nvapi|xai)[-_]|github_pat_|(?:hf|gsk|glpat)[-_]|AKIA|ASIA|AIza)[-\w]{8,}"
    r"|\beyJ[-\w]{5,}\.[-\w.]{5,}"  # a JSON Web Token
    r"|\b(?i:bearer|basic)\s+[-\w.~+/]{8,}=*"
    r"|(?<=://)[^\s/@:]{0,100}:[^\s/]{1,100}(?=@)"
)
_NAMED_KEYS = re.compile(
    r"(?i)((?:authorization[\"']?\s?[=:]\s?[\"']?(?:[a-z]+\s+)?"
    r"|(?:(?:api|access|secret|private)[-_]?key|token|secret|credential|passw(?:or)?d|passphrase|\bpwd)[\w-]{0,20}"
    r"[\"']?\s?[=:]\s?[\"']?|[?&](?:key|sig|signature|code)=))[^\s&\"',;]{4,}"
)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What a failed call means. `result` is the text for the model, its first line the status.

    `cause` says why it may pass, "" that it will not. `retry_after` is what the service asks for in seconds, None if
    it asks for nothing.
    """

    status: ToolStatus
    error: ErrorInfo
    result: str
    cause: Cause
    retry_after: float | None


def judge(error: BaseException, tool: Tool) -> Failure:
    """What it means that a call of `tool` ended with `error`.

    A rate limit and a service that is down (500 to 599) are known by the codes that a value or an exception itself
    carries, or by the name of its class. Time that ran out and connections that failed are also known by what an
    exception was raised from, since libraries wrap them. A group of one exception stands for that one.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    codes = tuple(_codes(error))
    cause = _cause(error, codes)
    status, kind = _status(error, cause)
    message = described(error)
    if cause == "upstream":
        line, told = "[degraded]", tool.degraded or _degraded(tool, server_error(codes))
    else:
        line, told = "[timeout]" if status == "timeout" else f"[error: {kind}]", message
    return Failure(
        status=status,
        error=ErrorInfo(kind=kind, message=message),
        result=f"{line}\n{told}",
        cause=cause,
        retry_after=_retry_after(error) if cause in ("rate_limit", "upstream") else None,
    )


def _status(error: BaseException, cause: Cause) -> tuple[ToolStatus, str]:
    if cause == "rate_limit":
        return "rate_limited", "rate_limited"
    if cause == "upstream":
        return "degraded", "upstream"
    kind = error.kind if isinstance(error, ToolError) else ToolFailedError.kind
    if isinstance(error, ToolTimeoutError):
        return "timeout", kind
    return ("invalid_arguments" if isinstance(error, ToolArgumentsError) else "error"), kind


def _degraded(tool: Tool, code: int | None) -> str:
    return (
        f"The service behind {tool.name} answered with an error (status {code}), so there is no result."
        " Do not invent one; say that this is not available now."
    )


def _cause(error: BaseException, codes: tuple[Any, ...]) -> Cause:
    if isinstance(error, ToolTimeoutError):
        return "timeout"
    if isinstance(error, ToolArgumentsError):
        return ""
    if any(map(is_rate_limit, codes)):
        return "rate_limit"
    if server_error(codes) is not None:
        return "upstream"
    return next((cause for link in _links(error) if (cause := _passing(link))), "")


def _passing(error: BaseException) -> Cause:
    if isinstance(error, TimeoutError):
        return "timeout"
    is_transient = isinstance(error, ConnectionError | socket.gaierror) or (
        isinstance(error, AgentflowError) and error.retryable
    )
    return "transient" if is_transient else ""


def _links(error: BaseException) -> Iterator[BaseException]:
    """The exception, and what it was raised from, or while it was handled."""
    link: BaseException | None = error
    for _ in range(_MAX_LINKS):
        if link is None:
            return
        yield link
        hidden = link.__cause__ is not None or link.__suppress_context__
        link = link.__cause__ if hidden else link.__context__


def _codes(error: BaseException) -> Iterator[Any]:
    if isinstance(error, ReportedFailureError):
        yield from error.codes
    elif isinstance(error, Exception):  # the `code` of SystemExit is another thing
        for holder in (error, _attribute(error, "response")):
            for name in ("status", "status_code", "code"):
                yield _attribute(holder, name)
        yield from (kind.__name__ for kind in type(error).__mro__)


def _retry_after(error: BaseException) -> float | None:
    own = {"Retry-After": _attribute(error, "retry_after")}
    headers = (_attribute(holder, "headers") for holder in (error, _attribute(error, "response")))
    return next((wait for fields in (own, *headers) if (wait := retry_after(fields)) is not None), None)


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001  a foreign exception's property may raise; it then says nothing
        return None


def described(error: BaseException) -> str:
    """One line for the model: type and text, without traceback, control characters and what looks like a key."""
    text = without_keys(clean_text("; ".join(_leaves(error))[: 8 * _MAX_MESSAGE]))
    text = "".join(character if character.isprintable() else " " for character in text)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_MESSAGE else f"{text[: _MAX_MESSAGE - 3]}..."


def without_keys(text: str) -> str:
    """The text with stars in place of what looks like a key, a token or a password in an address."""
    return _NAMED_KEYS.sub(r"\1***", _KEYS.sub("***", text))


def _leaves(error: BaseException, depth: int = 0) -> Iterator[str]:
    if isinstance(error, BaseExceptionGroup) and depth < 5:
        for inner in error.exceptions[:3]:
            yield from _leaves(inner, depth + 1)
        return
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  an exception's own __str__ may be the fault
        text = ""
    if isinstance(error, ToolError):
        yield text
    else:
        yield f"{type(error).__name__}: {text}" if text else type(error).__name__
