"""What a provider says when it fails: error bodies and error objects become one of our errors.

It does not decide whether a call is repeated; and it never shows a secret: what looks like a key is masked.
"""

import base64
import html
import json
import math
import re
import string
import sys
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from agentflow.errors import ModelError, ModelRateLimitError, ModelStatusError

MAX_MESSAGE = 500  # characters of the provider's own words that an error carries

MAX_QUOTED = 80  # characters of what could not be read that an error carries

_SECRET = re.compile(
    r"(?i)\bbearer\s+[^\s\"',;]+"
    r"|\bbasic\s+[\w+/\-]{8,}=*"
    r"|\b(?:sk|pk|rk|gsk|xai|nvapi|pplx|hf|key)[-_][\w*.\-]{6,}"
    r"|\bAIza[\w\-]{10,}"
    r"|\beyJ[\w\-]{8,}\.[\w\-.]+"
    r"|(?<=://)[^\s/\"']+(?=@)"
)
_PIECE = 8  # characters of a key that are masked wherever they stand
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)  # keeps the length, as lower() does not
# One character, as it is or as JSON, an address, Python or HTML escape it, several times over too.
_CHARACTER = re.compile(
    r"\\+u([0-9a-f]{4})|(?:\\+x|%(?:25)*)([0-9a-f]{2})|&(?:amp;)*(?:\#x([0-9a-f]{1,6})|\#(\d{1,7})|(\w{2,8}));|\\+(.)|(.)",
    re.IGNORECASE | re.DOTALL,
)
_TITLE = re.compile(r"(?is)<title[^>]{0,200}>([^<]{0,200})")
_KEYS_OF_TEXT = ("message", "detail", "error", "msg", "title")


def mask(text: str, secret: str = "") -> str:
    """`text` without `secret` and without anything that has the form of a key.

    Of the secret no piece of 8 characters is left, whether it is as it is, escaped, in another case or in base64.
    """
    if secret:
        text = _without(text, secret)
    return _SECRET.sub("***", text)


def quoted(payload: bytes, secret: str = "") -> str:
    """The beginning of what could not be read, for an error: masked before it is cut."""
    return repr(mask(payload[: 10 * MAX_QUOTED].decode("utf-8", "backslashreplace"), secret)[:MAX_QUOTED])


def error_from_body(
    status: int,
    content_type: str,
    body: bytes,
    *,
    provider: str,
    headers: Mapping[str, str],
    secret: str = "",
) -> ModelError:
    """The error for a reply with an error status. `secret` is the key in use, which some providers repeat."""
    text = body.decode("utf-8", "replace").strip()
    words = _words_of_body(text, content_type)
    message = f"{provider!r} answered {status}" + (f": {_short(words, secret)}" if words else " and said no more")
    wait = retry_after(headers)
    if status == 429:
        return ModelRateLimitError(message, provider=provider, retry_after=wait)
    error = ModelStatusError(message, provider=provider, status=status)
    error.retry_after = wait
    return error


def error_from_object(error: Any, *, provider: str, secret: str = "") -> ModelError:
    """The error for an error object (or string) that came with status 200, in a stream or alone."""
    status = _status(error)
    words = _words(error) or "no reason given"
    message = f"{provider!r} failed while it answered: {_short(words, secret)}"
    if status == 429:
        return ModelRateLimitError(message, provider=provider)
    return ModelStatusError(message, provider=provider, status=status)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that `Retry-After` asks for; None if it is absent or neither a number nor a date.

    A date is taken relative to the reply's own `Date`, so that no clock, and no wrong clock, has a part in it.
    """
    value = headers.get("Retry-After", "").strip()
    try:
        if value.replace(".", "", 1).isdecimal():
            seconds = float(value)
            return seconds if math.isfinite(seconds) else None
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(headers.get("Date", ""))
    except (ValueError, TypeError, OverflowError):  # TypeError: one of the two dates has no time zone
        return None
    return max(0.0, wait.total_seconds())


def _without(text: str, secret: str) -> str:
    pieces = _pieces(secret)
    size = len(next(iter(pieces)))
    found = [match for match in _CHARACTER.finditer(text) if not match[0].isspace()]
    plain = "".join(map(_meant, found)).translate(_LOWER)
    kept: list[str] = []
    end = 0  # of what was kept or masked, in `text`
    masked = -1  # the first character after what is masked, in `plain`
    for at in range(len(plain) - size + 1):
        if plain[at : at + size] not in pieces:
            continue
        if at > masked:
            kept += (text[end : found[at].start()], "***")
        masked = at + size
        end = found[masked - 1].end()
    return "".join((*kept, text[end:]))


def _pieces(secret: str) -> set[str]:
    """All pieces of one length that the secret has, as it is and as it is in base64 after 0, 1 or 2 other bytes."""
    size = min(_PIECE, len(secret))
    forms = [secret]
    if len(secret) >= _PIECE:
        for before in range(3):
            form = base64.b64encode(bytes(before) + secret.encode()).decode().rstrip("=")[before and before + 1 : -1]
            forms += (form, form.translate(str.maketrans("+/", "-_")))
    lower = [form.translate(_LOWER) for form in forms]
    return {form[at : at + size] for form in lower for at in range(len(form) - size + 1)}


def _meant(match: re.Match[str]) -> str:
    """The one character that it stands for."""
    wide, byte, hexadecimal, decimal, name, escaped, plain = match.groups()
    if plain or escaped:
        return plain or escaped
    if name:
        return html.unescape(f"&{name};")[:1]
    code = int(decimal) if decimal else int(wide or byte or hexadecimal, 16)
    return chr(code) if code <= sys.maxunicode else " "


def _words_of_body(text: str, content_type: str) -> str:
    if "html" in content_type.lower() or text[:1] == "<":
        title = _TITLE.search(text)
        return f"an HTML page ({' '.join(title[1].split())!r})" if title else "an HTML page"
    return _words(_loads(text)) or text


def _words(error: Any, levels: int = 5) -> str:
    """The provider's own words, from any of the shapes in use; "" if there are none within so many levels."""
    if isinstance(error, str):
        nested = _words(_loads(error), levels - 1) if error[:1] in ("{", "[") and levels else ""
        return nested or error
    if not levels:
        return ""
    if isinstance(error, list):
        return "; ".join(filter(None, (_words(item, levels - 1) for item in error[:3])))
    if not isinstance(error, dict):
        return ""
    words = next(filter(None, (_words(error.get(key), levels - 1) for key in _KEYS_OF_TEXT)), "")
    metadata = error.get("metadata")
    upstream = _words(metadata.get("raw"), levels - 1) if isinstance(metadata, dict) else ""
    if upstream and upstream not in words:
        words = f"{words} ({upstream})" if words else upstream
    return words


def _status(error: Any) -> int | None:
    if not isinstance(error, dict):
        return None
    for key in ("status_code", "code", "status"):
        value = error.get(key)
        if isinstance(value, str) and len(value) == 3 and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return None


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # not JSON: the text is then the message
        return None


def _short(text: str, secret: str) -> str:
    """One line, masked, cut; masked before the cut that is seen, so that it leaves no half of a key."""
    line = mask(" ".join(text.split())[: 10 * MAX_MESSAGE], secret)
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"
