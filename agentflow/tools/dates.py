"""Dates and times as people and models write them, in the one form that JSON Schema knows (ISO 8601).

Only what has one reading is read: 31.01.2025 is a date, 02.01.2025 could be two. A time without a zone stays
without one, a zone is kept and never converted. Pure: nothing is relative to today.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from email.utils import parsedate_to_datetime

from agentflow.tools.names import narrow

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?P<name>{'|'.join(_MONTHS)})(?:uary|ruary|ch|il|e|y|ust|t|tember|ober|ember)?\.?"

_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?P<y>\d{4})(?P<s>[-/.])(?P<m>\d{1,2})(?P=s)(?P<d>\d{1,2})",
        r"(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})",
        r"(?P<y>\d{4})\s*年\s*(?P<m>\d{1,2})\s*月\s*(?P<d>\d{1,2})\s*日",
        r"(?P<a>\d{1,2})(?P<s>[-/.])(?P<b>\d{1,2})(?P=s)(?P<y>\d{4})",
        rf"(?P<d>\d{{1,2}})(?:st|nd|rd|th|\.)?[ -]{_MONTH}[ ,-]{{1,2}}(?P<y>\d{{4}})",
        rf"{_MONTH} (?P<d>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<y>\d{{4}})",
    )
)
_TIME = re.compile(
    r"(?P<h>\d{1,2}):(?P<m>\d{2})(?::(?P<s>\d{2})(?P<f>[.,]\d{1,9})?)? ?(?P<half>am|pm|a\.m\.|p\.m\.)?"
    r" ?(?P<zone>z|utc|gmt|[+-]\d{2}:?\d{2})?",
    re.IGNORECASE,
)
_MAIL = re.compile(
    r"[a-z]{3}, \d{1,2} [a-z]{3} \d{4} \d\d:\d\d(?::\d\d)?(?: (?:UTC?|GMT|Z|[ECMP][SD]T|(?!-0000)[+-]\d{4}))?",
    re.IGNORECASE,
)  # other names of zones are dropped by the reader, and -0000 says that the zone is not known
_EPOCH = re.compile(r"\d{10}")  # seconds, from 2001 to 2286
_MAX_LENGTH = 64


def read(text: str, form: str) -> str | None:
    """`text` in ISO 8601, `form` being "date", "time" or "date-time"; None if it has not exactly one reading.

    A date-time whose time is midnight may stand for a date, and ten digits for seconds since 1970, UTC, if the
    form is date-time.
    """
    reader = _READERS.get(form)
    text = narrow(text[: _MAX_LENGTH + 1]).strip()
    if reader is None or len(text) > _MAX_LENGTH:
        return None
    try:
        return reader(text)
    except (ValueError, OverflowError):  # no such day or hour
        return None


def _read_date(text: str) -> str | None:
    for pattern in _DATES:
        found = pattern.fullmatch(text)
        if found:
            return _date(found.groupdict())
    moment = _read_date_time(text)
    if moment is None or _EPOCH.fullmatch(text):
        return None
    day, _, clock = moment.partition("T")
    return day if not clock.strip("0:.Z+-") else None


def _date(parts: dict[str, str | None]) -> str | None:
    year = int(parts["y"] or 0)
    if "a" in parts:  # day and month in an order that only their size can tell
        a, b = int(parts["a"] or 0), int(parts["b"] or 0)
        if a <= 12 and b <= 12 and a != b:
            return None
        day, month = (a, b) if b <= 12 else (b, a)
    else:
        name = parts.get("name")
        month = _MONTHS.index(name.lower()) + 1 if name else int(parts["m"] or 0)
        day = int(parts["d"] or 0)
    return date(year, month, day).isoformat()


def _read_time(text: str) -> str | None:
    found = _TIME.fullmatch(text)
    if not found:
        return None
    hour, half = int(found["h"]), (found["half"] or "").lower().replace(".", "")
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "pm" else 0)
    clock = time(hour, int(found["m"]), int(found["s"] or 0)).isoformat()
    fraction = "." + found["f"][1:7] if found["f"] else ""
    zone = found["zone"] or ""
    if zone[:1] in "+-" and ":" not in zone and zone:
        zone = f"{zone[:3]}:{zone[3:]}"
    elif zone[:1] not in "+-":
        zone = "Z"
    return clock + fraction + zone


def _read_date_time(text: str) -> str | None:
    if _EPOCH.fullmatch(text):
        return datetime.fromtimestamp(int(text), UTC).isoformat().replace("+00:00", "Z")
    for split in re.finditer(r"[T ]|(?<=日)", text, re.IGNORECASE):
        day, clock = text[: split.start()].rstrip(" ,"), text[split.end() :]
        known = next((found for pattern in _DATES if (found := pattern.fullmatch(day))), None)
        if known and clock:
            iso_day, iso_time = _date(known.groupdict()), _read_time(clock)
            if iso_day and iso_time:
                return f"{iso_day}T{iso_time}"
    if _MAIL.fullmatch(text):
        return parsedate_to_datetime(text).isoformat()
    for pattern in _DATES:  # a day alone begins at midnight, as it does for Python
        found = pattern.fullmatch(text)
        if found:
            day_only = _date(found.groupdict())
            return f"{day_only}T00:00:00" if day_only else None
    return None


_READERS: dict[str, Callable[[str], str | None]] = {
    "date": _read_date,
    "time": _read_time,
    "date-time": _read_date_time,
}
