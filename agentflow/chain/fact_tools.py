"""`remember` and `recall`: the tools with which a model keeps facts about its user, and looks them up.

Whose facts they are comes from the run and never from the model. Which fact supersedes which, and which belong to a
question, is decided in `memory.facts`; what is found in conversations without a model's doing is in `remembering`.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from agentflow.errors import ToolFailedError
from agentflow.memory.facts import relevant, supersede
from agentflow.models.base import estimate_tokens
from agentflow.stores.base import Fact, FactStore
from agentflow.tools import ToolContext, tool
from agentflow.tools.failures import without_keys

_MAX_TEXT = 300  # characters, as of what is found in conversations
_MAX_SUBJECT = 60
_TOKENS = 500  # at most, of the facts that one look gives
_CONFIDENCE = 0.9  # as of what a user says of themself: a model heard it

_SAID_SECRETS = re.compile(
    r"\b(?:pass(?:word|code|phrase)|passwort|kennwort|pin|cvv|cvc)\b[^.!?\n]{0,30}?(?:\b(?:is|ist|lautet)\b|[:=])\s*\S"
    r"|(?:密码|密碼|口令)\s*(?:是|为|為|[:：=])\s*\S",
    re.IGNORECASE,
)
_OPAQUE = re.compile(r"(?=\S*[a-z])(?=\S*[A-Z])(?=\S*\d)[\w+/=-]{24,}", re.ASCII)
_DIGITS = re.compile(r"\d(?:[ -]?\d){12,18}")


def fact_tools(store: FactStore) -> list[Callable[..., Any]]:
    """The tools `remember` and `recall`, for `Agent(tools=[*fact_tools(store)], store=store)`.

    They are for runs with a `user_id`, and fail in others. `remember` refuses what looks like a password, a key or the
    number of a card: facts are shown to models, and kept until they are deleted.
    """

    # Not beside other calls of its round: two that supersede the same fact must see each other.
    @tool(idempotent=True, sequential=True, examples=[{"text": "I live in Rome.", "subject": "home"}])
    async def remember(
        text: Annotated[str, Field(min_length=1, max_length=_MAX_TEXT)],
        context: ToolContext,
        subject: Annotated[str, Field(max_length=_MAX_SUBJECT)] = "",
    ) -> str:
        """Remember a fact about the user for later conversations. Never passwords, keys or card numbers.

        Args:
            text: The fact in one sentence that can be understood by itself.
            subject: What it is about, in a word or two, if only one such fact can hold: what was remembered of the
                same subject is replaced.
        """
        user_id, said = _user_of(context), " ".join(text.split())
        if not said:
            raise ToolFailedError("there is no fact in this text")
        if looks_secret(f"{subject}: {said}"):
            raise ToolFailedError("this looks like a password, a key or a card number, which are not remembered")
        fact = Fact(
            id=f"{context.run_id}-{context.call_id}",
            user_id=user_id,
            text=said,
            subject=" ".join(subject.split()).lower(),
            run_id=context.run_id,
            confidence=_CONFIDENCE,
            created_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        )
        changed = supersede(await store.list_facts(user_id, superseded=True), [fact])
        if changed:
            await store.put_facts(changed)
        replaced = [older.text for older in changed if older.superseded_by is not None]
        return f"remembered, in place of: {replaced[0]}" if replaced else "remembered"

    @tool(idempotent=True, is_error=lambda _: False)  # a fact may speak of an error
    async def recall(question: str, context: ToolContext) -> list[str] | str:
        """Look up what is remembered about the user from earlier conversations.

        Args:
            question: What you want to know, in the words in which the user may have said it.
        """
        known = await store.list_facts(_user_of(context))
        found = [fact.text for fact in relevant(known, question, _TOKENS, estimate_tokens)]
        return found or "nothing about that is remembered"

    return [remember, recall]


def _user_of(context: ToolContext) -> str:
    if context.user_id is None:
        raise ToolFailedError("nobody knows who the user of this conversation is, so nothing is remembered about them")
    return context.user_id


def looks_secret(text: str) -> bool:
    """Whether a text holds what looks like a key, a password or the number of a payment card. A guess by its form."""
    cards = (re.sub(r"\D", "", digits) for digits in _DIGITS.findall(text))
    found = without_keys(text) != text or _SAID_SECRETS.search(text) or _OPAQUE.search(text)
    return bool(found) or any(map(_is_card, cards))


def _is_card(digits: str) -> bool:
    """The check of Luhn, which all payment cards pass and one in ten other numbers."""
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0
