"""Whether the value that a tool returned says that the tool has failed.

A failure told as data would be a success to everyone but the reader of the data. It reads values only; what comes
of a failure is the business of `failures`. Pure.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from agentflow.errors import ToolFailedError
from agentflow.tools.upstream import is_rate_limit, retry_after

IsError: TypeAlias = Callable[[Any], bool | str | None]

_STATUS_KEYS = ("status", "status_code", "statusCode")
_CODE_KEYS = (*_STATUS_KEYS, "code", "error_code", "errorCode", "error")
_NOTHING = frozenset({"", "none", "null", "false", "n/a"})  # an `error` that says there is none
_FAILURE = re.compile(r"[45][0-9][0-9]")
_TEXT_KEYS = ("message", "msg", "detail", "description", "reason", "title")


class ReportedFailureError(ToolFailedError):
    """A tool returned a value that says failure. `status` is that of the call's `tool_error`.

    `codes` are all codes of the failure that the value carries; `retry_after` is in seconds, None if it says none.
    """

    def __init__(self, message: str, *, codes: Iterable[Any] = (), retry_after: float | None = None) -> None:
        super().__init__(message)
        self.codes = tuple(codes)
        self.retry_after = retry_after
        limited = any(map(is_rate_limit, self.codes))
        self.status: Literal["error", "rate_limited"] = "rate_limited" if limited else "error"
        self.kind = "rate_limited" if limited else ToolFailedError.kind


def check(value: Any, data: Any, is_error: IsError | None) -> None:
    """Raise `ReportedFailureError` if `value` says failure; `data` is the same as plain JSON data.

    `is_error(value)` decides: True or a text, which is told to the model, is a failure, False is none, None leaves
    it to the rules, and what it raises is raised. By the rules an object is a failure if it has a non-empty
    `error` (a text such as "none" is empty), `isError` true, `ok` or `success` false, `status` or `status_code` of
    400 and more, or the code of a rate limit; a `code` of 429 counts only beside an error or a message, else it may
    be the code of anything. Booleans and statuses may be written as text.
    """
    verdict = is_error(value) if is_error is not None else None
    if not isinstance(verdict, bool | str | None):
        raise ToolFailedError(f"is_error= returned {type(verdict).__name__}, expected True, False, None or a text")
    if verdict is False:
        return
    if verdict or (verdict is None and _says_failure(data)):
        message = verdict if isinstance(verdict, str) else _summary(data)
        raise ReportedFailureError(message, codes=_codes(data), retry_after=_retry_after(data))


def _says_failure(data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    return (
        _names_error(data.get("error"))
        or any(_is_flag(data.get(key), "true") for key in ("isError", "is_error"))
        or any(_is_flag(data.get(key), "false") for key in ("ok", "success"))
        or _status(data) is not None
        or any(map(is_rate_limit, _codes(data)))
    )


def _names_error(error: Any) -> bool:
    if isinstance(error, str):
        return error.strip().lower() not in _NOTHING
    return bool(error)


def _is_flag(value: Any, word: str) -> bool:
    """Whether `value` is this boolean, or its word as text."""
    return isinstance(value, bool | str) and str(value).strip().lower() == word


def _status(data: Mapping[str, Any]) -> int | None:
    """The first status of 400 and more; as text, of three digits."""
    for value in (data.get(key) for key in _STATUS_KEYS):
        if type(value) is int and value >= 400:
            return value
        if isinstance(value, str) and _FAILURE.fullmatch(value.strip()):
            return int(value)
    return None


def _codes(data: Any) -> Iterator[Any]:
    if not isinstance(data, dict):
        return
    error = data.get("error")
    for key in _CODE_KEYS:
        if type(data.get(key)) in (int, str) and (key != "code" or _is_told(data)):
            yield data[key]
    if isinstance(error, dict):
        for key in (*_CODE_KEYS, "type"):
            if type(error.get(key)) in (int, str):
                yield error[key]


def _retry_after(data: Any) -> float | None:
    if not isinstance(data, dict):
        return None
    places = (data, data["error"]) if isinstance(data.get("error"), dict) else (data,)
    waits = (retry_after(fields) for place in places for fields in (place, place.get("headers")))
    return next((wait for wait in waits if wait is not None), None)


def _is_told(data: Mapping[str, Any]) -> bool:
    """Whether a `code` is that of a failure: a word, or a number beside an error or a message."""
    beside = ("error", "errors", "error_code", "errorCode", *_TEXT_KEYS)
    return not str(data["code"]).strip().isdigit() or any(data.get(key) for key in beside)


def _summary(data: Any) -> str:
    """One sentence; of the value only its status and its message, never all of it."""
    if not isinstance(data, dict):
        return "the tool reported a failure"
    error = data.get("error")
    texts = [error, *(error.get(key) for key in _TEXT_KEYS)] if isinstance(error, dict) else [error]
    texts += [data.get(key) for key in _TEXT_KEYS]
    text = next((text for text in texts if isinstance(text, str) and text.strip()), "")
    status = _status(data)
    return "".join((
        "the tool reported a failure",
        f" (status {status})" if status is not None else "",
        f": {text}" if text else "",
    ))  # fmt: skip
