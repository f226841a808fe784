"""Secrets out of texts that go to logs, whatever field they came in.

What a secret is called does not matter: a key in the place of a user's name is a key. Ids that agentflow itself makes
are not to be given here, since they look alike.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from agentflow.models.failures import mask
from agentflow.tools.failures import without_keys

HIDDEN: Final = "***"
_SHORTEST: Final = 8  # characters of a known secret: shorter ones would hide ordinary words
_SHORT: Final = 128  # characters of a text that is likely to come again, as names and ids do
_REMEMBERED: Final = 4096  # of these

# Keys of this server; long runs of hex digits; and what has letters of both cases and digits for 32 characters on end.
_OPAQUE = re.compile(
    r"\baf_[0-9a-f]{12}_[\w-]{8,}|(?<![\w-])[0-9a-fA-F]{32,}(?![\w-])"
    r"|(?<![\w+-])(?=[\w+-]{0,31}[a-z])(?=[\w+-]{0,31}[A-Z])(?=[\w+-]{0,31}[0-9])[\w+-]{32,}={0,2}",
    re.ASCII,
)


class Masks:
    """Hides what has the form of a key, and every one of `known`, such as the keys that are configured."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = sorted({text for text in known if len(text) >= _SHORTEST}, key=len, reverse=True)
        self._hidden_before = lru_cache(_REMEMBERED)(self._hidden)

    def hide(self, text: str) -> str:
        """The text with stars in place of secrets. It takes time in proportion to the text: cut it before."""
        return self._hidden_before(text) if len(text) <= _SHORT else self._hidden(text)

    def _hidden(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, HIDDEN)
        return _OPAQUE.sub(HIDDEN, without_keys(mask(text)))
