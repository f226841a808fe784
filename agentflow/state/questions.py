"""Whether a reply is nothing but a question to the user, written as data: `{"question": …, "options": […]}`.

It does not ask it, and it does not look for a question among other text. Pure.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from agentflow.messages import clean_text

MAX_TEXT: Final = 20_000  # characters of the reply
MAX_QUESTION: Final = 4_000  # characters
MAX_OPTIONS: Final = 50

_FENCE: Final = re.compile(r"```(?:json)?[ \t]*\r?\n(.*)```", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Question:
    """What the model wants to know; `options` are the answers it offers, in its order, () for any answer."""

    text: str
    options: tuple[str, ...] = ()


def question_of(text: str) -> Question | None:
    """The question that this reply is, or None. It never raises.

    The whole reply is a JSON object with exactly the keys `question` (a text that is not blank) and `options` (a list
    of such texts, which may be empty), with white space or one Markdown fence round it.
    """
    if len(text) > MAX_TEXT or not text.lstrip().startswith(("{", "```")):
        return None
    body = text.strip()
    fenced = _FENCE.fullmatch(body)
    try:
        content = json.loads(fenced[1] if fenced else body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.keys() != {"question", "options"}:
        return None
    question, options = content["question"], content["options"]
    if not _is_words(question) or len(question) > MAX_QUESTION:
        return None
    if not isinstance(options, list) or len(options) > MAX_OPTIONS or not all(map(_is_words, options)):
        return None
    return Question(_clean(question), tuple(map(_clean, options)))


def _clean(words: str) -> str:
    return clean_text(words.strip())  # JSON can escape half of a surrogate pair


def _is_words(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())
