"""Which of the known names a model meant by one that is written a little differently.

Pure; it says nothing about values other than names and the members of an enumeration.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

_MAX_KNOWN = 100  # characters of a text whose form is remembered
_MIN_TYPO = 5  # characters: in shorter names one letter is a different word

_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: " "}

# Between two digits a separator is no matter of style: "1_2" is not "12".
_SEPARATORS = re.compile(r"(?<=[^\W_])[\s_-]+(?=[^\W\d_])|(?<=[^\W\d_])[\s_-]+(?=\d)")


def narrow(text: str) -> str:
    """`text` with plain characters for full-width ones, and nothing else changed: 10² is not 102."""
    return text if text.isascii() else unicodedata.normalize("NFC", text.translate(_NARROW))


def same(text: str) -> str:
    """A form in which `orderId`, `order_id`, `ORDER-ID` and full-width letters are the same."""
    return _known_form(text) if len(text) <= _MAX_KNOWN else _form(text)


def _form(text: str) -> str:
    return _SEPARATORS.sub("", narrow(text).strip().casefold())


_known_form = lru_cache(maxsize=4096)(_form)  # each of a model's names is compared with each of a tool's


def match(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that is `name` but for case, separators and width; None if there is none or several."""
    wanted = same(name)
    found = [other for other in known if same(other) == wanted]
    return found[0] if len(found) == 1 else None


def match_typo(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that is `name` but for one letter more, less, other, or two exchanged."""
    found = [other for other in known if _is_typo(same(name), same(other))]
    return found[0] if len(found) == 1 else None


def _is_typo(a: str, b: str) -> bool:
    if min(len(a), len(b)) < _MIN_TYPO or abs(len(a) - len(b)) > 1:
        return False
    start = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    if not (a + b).isalpha():
        return False  # line1 and line2 are two things
    return max(len(a), len(b)) == 1 or (len(a) == 2 and a == b[::-1])
