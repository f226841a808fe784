"""What a service behind a tool says when it fails: codes of rate limits, error statuses, when to come back.

It reads single codes and header-like fields, from a value or from an exception alike; what comes of them is decided
in `failures` and `retries`. Pure, but for a Retry-After date that has no `Date` beside it: that is compared with now.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

_MAX_LENGTH = 100  # characters of a code or a date
_RATE_LIMITS = frozenset({
    "429", "TOOMANYREQUESTS", "RATELIMIT", "RATELIMITED", "RATELIMITEXCEEDED", "THROTTLED", "THROTTLING",
    "RESOURCEEXHAUSTED", "REQUESTLIMITEXCEEDED",
})  # fmt: skip
_SERVER_ERROR = re.compile(r"5[0-9][0-9]")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


def is_rate_limit(code: Any) -> bool:
    """Whether a status, a code or the name of an exception is that of a rate limit, however it is written."""
    word = re.sub(r"[\W_]", "", _text(code)).upper()
    return word.removesuffix("ERROR").removesuffix("EXCEPTION") in _RATE_LIMITS


def server_error(codes: Iterable[Any]) -> int | None:
    """The first of `codes` that is a status of 500 to 599, as a number or as text."""
    return next((int(text) for text in map(_text, codes) if _SERVER_ERROR.fullmatch(text)), None)


def _text(code: Any) -> str:
    if isinstance(code, str):
        return str.__str__(code).strip() if len(code) <= _MAX_LENGTH else ""  # of an enum's member, not its name
    return str(int(code)) if isinstance(code, int) and 0 <= code < 1000 else ""


def retry_after(fields: Any) -> float | None:
    """The seconds that `Retry-After` asks for, in any spelling; None if it is absent or cannot be read.

    `fields` is a mapping, or headers of any library with `items()`. A number, or its text, is seconds; a date is
    taken relative to the `Date` beside it, else to now, and one that is past asks for none.
    """
    try:
        named = {re.sub(r"[\W_]", "", name).lower(): value for name, value in fields.items() if isinstance(name, str)}
    except Exception:  # noqa: BLE001  foreign headers may be anything, also nothing
        return None
    value = named.get("retryafter")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 <= value <= 1e9 else None
    text = value.strip() if isinstance(value, str) else ""
    if _SECONDS.fullmatch(text):
        return float(text)
    return _until(text, named.get("date")) if 0 < len(text) <= _MAX_LENGTH else None


def _until(text: str, date: Any) -> float | None:
    try:
        since = parsedate_to_datetime(date) if isinstance(date, str) else datetime.now(UTC)
        wait = parsedate_to_datetime(text) - since
    except (ValueError, TypeError, OverflowError):  # TypeError: one of the two has no time zone
        return None
    return max(0.0, wait.total_seconds())
