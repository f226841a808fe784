"""The window: which messages of a session a model is shown, within a budget of tokens.

Pure: it neither loads turns nor makes summaries nor asks a model. What falls out of the window stays in the session.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, dropwhile
from typing import TypeAlias

import msgspec

from agentflow.errors import LimitError
from agentflow.memory.compression import MemoryPolicy, cover
from agentflow.memory.pairing import repair
from agentflow.messages import Message
from agentflow.stores.base import Fact, Session, Summary, Turn

CountTokens: TypeAlias = Callable[[Message], int]  # what one message costs, its frame included
Messages: TypeAlias = tuple[Message, ...]

_NOTES_TOKENS = 2000  # at most, for summaries and facts together
_RECENT_TURNS = 3  # the last ones, whose results are shown whole where there is room
_OLD_RESULT_TOKENS = 200  # at most of a result before those: what was learnt from it stands in its turn's answer
_NOTES_TITLE = "[Notes on what was said before: a record of the conversation, no instructions]"
_NOTED = "[noted]"  # so that user and assistant still take turns, as some providers demand
_PINNED, _FACT, _SUMMARISED = range(3)  # lines of notes, the most important first


class Window:
    """A session's past as one run shows it to its models: built once, asked before every call.

    `facts` are those worth showing, the newest last; only the layered strategy shows them. Stored turns are
    repaired, and their system messages left out: no history speaks with that voice. Of turns before the last three,
    all strategies but `full` show long results shortened.
    """

    def __init__(self, session: Session, policy: MemoryPolicy, count: CountTokens, facts: Sequence[Fact] = ()) -> None:
        self._count = count
        self._turns: dict[int, Messages] = {}  # by number, the oldest first
        self._next = session.version + 1  # the number of the running turn
        self._summaries: tuple[Summary, ...] = ()
        self._facts: tuple[str, ...] = ()
        turns, recent = session.turns, 0  # the number from which on results are shown whole
        if policy.strategy != "full":
            turns = turns[max(0, len(turns) - policy.turns) :]
            recent = self._next - _RECENT_TURNS
            self._summaries = cover(session.summaries, policy.confidence)
        if policy.is_layered(session.version):
            self._facts = tuple(fact.text for fact in facts if fact.confidence >= policy.confidence)
        self._call_ids: set[str] = set()
        for number, turn in enumerate(turns, self._next - len(turns)):
            messages = self._loaded(turn)
            self._turns[number] = messages if number >= recent else self._aged(messages)

    def _loaded(self, turn: Turn) -> Messages:
        said = [message for message in turn.messages if message.role not in ("system", "developer")]
        messages = tuple(dropwhile(lambda message: message.role != "user", repair(said, self._call_ids)))
        self._call_ids.update(call.call_id for message in messages for call in message.tool_calls)
        return messages

    def _aged(self, messages: Messages) -> Messages:
        return tuple(
            _shortened(message, size, _OLD_RESULT_TOKENS, self._count)
            if message.role == "tool" and (size := self._count(message)) > _OLD_RESULT_TOKENS
            else message
            for message in messages
        )

    def messages(self, running: Sequence[Message], budget: int | None = None) -> Messages:
        """What to send after the system message: notes, the turns there is room for, and `running`, the turn under way.

        They are paired, open on a user message (unless `running`, alone, does not) and cost at most `budget` tokens
        (None: no bound). Nothing of `running` is left out, but its results may be shortened where they stand, with a
        mark, the longest first. So may those of the oldest turn shown; else a turn is whole or absent. Raises
        `LimitError` if `running` costs more than the budget by itself.
        """
        running = repair(running, self._call_ids)
        if budget is None:
            return (*self._notes(min(self._turns, default=self._next), _NOTES_TOKENS), *_joined(self._turns), *running)
        fitted = fit(running, budget, self._count)
        if fitted is None:
            raise LimitError(
                f"this turn alone costs {self._tokens(running)} tokens and the model has room for {budget}: "
                "send less, or use a model with a larger context"
            )
        return (*self._past(budget - self._tokens(fitted)), *fitted)

    def shown(self, budget: int) -> int:
        """How many of the last turns there is room for in `budget` tokens."""
        return len(self._newest(budget))

    def _past(self, budget: int) -> Messages:
        """The notes and the newest turns."""
        limit = min(_NOTES_TOKENS, budget // 4)
        reserved = self._tokens(self._notes(self._next, limit))
        turns = self._newest(budget - reserved)
        return (*self._notes(min(turns, default=self._next), reserved), *_joined(turns))

    def _newest(self, budget: int) -> dict[int, Messages]:
        """The newest turns, by number, the oldest first."""
        chosen: dict[int, Messages] = {}
        for number, turn in reversed(self._turns.items()):
            fitted = fit(turn, budget, self._count)
            if fitted is None:
                break
            budget -= self._tokens(fitted)
            chosen[number] = fitted
        return dict(reversed(chosen.items()))

    def _notes(self, shown_from: int, limit: int) -> Messages:
        """As many lines on the turns before `shown_from` as `limit` tokens have room for, the most important ones."""
        lines = self._lines(shown_from)
        order = sorted(range(len(lines)), key=lambda at: lines[at][1])

        def notes(kept: int) -> Messages:
            text = "\n".join((_NOTES_TITLE, *(lines[at][0] for at in sorted(order[:kept]))))
            return (Message(role="user", content=text), Message(role="assistant", content=_NOTED)) if kept else ()

        kept = bisect_right(range(1, len(lines) + 1), limit, key=lambda kept: self._tokens(notes(kept)))
        return notes(kept)

    def _lines(self, shown_from: int) -> list[tuple[str, tuple[int, int, int]]]:
        """The lines of the notes, in the order to show them, each with its place in the order of importance.

        Facts come last, since they say how things are by now.
        """
        facts = {f"- {fact}": (_FACT, 0, -at) for at, fact in enumerate(self._facts)}
        lines: dict[str, tuple[int, int, int]] = {}
        needed = [summary for summary in self._summaries if summary.first < shown_from]
        for age, summary in zip(range(len(needed) - 1, -1, -1), needed, strict=True):
            for at, line in enumerate(summary.text.splitlines()):
                kind = _PINNED if line.removeprefix("- ") in summary.pinned else _SUMMARISED
                if line not in facts:
                    lines.setdefault(line, (kind, age, -at))
        return [*lines.items(), *facts.items()]

    def _tokens(self, messages: Iterable[Message]) -> int:
        return sum(map(self._count, messages))


def _joined(turns: dict[int, Messages]) -> Iterable[Message]:
    return chain.from_iterable(turns.values())


def fit(messages: Messages, budget: int, count: CountTokens) -> Messages | None:
    """The messages within `budget` tokens, their results shortened, the longest first; None if that is not enough.

    Results that have to be shortened take at most three quarters of the room beside the other messages, so that one
    turn's do not drive out all that was said before.
    """
    sizes = [count(message) for message in messages]
    if sum(sizes) <= budget:
        return messages
    results = sorted(size for message, size in zip(messages, sizes, strict=True) if message.role == "tool")
    cap = _level(results, (budget - sum(sizes) + sum(results)) * 3 // 4)
    fitted = tuple(
        _shortened(message, size, cap, count) if message.role == "tool" and size > cap else message
        for message, size in zip(messages, sizes, strict=True)
    )
    return fitted if sum(map(count, fitted)) <= budget else None


def _level(sizes: list[int], room: int) -> int:
    """The highest bound for each of the ascending `sizes` with which they come to `room` in all."""
    for position, size in enumerate(sizes):
        share = max(0, room) // (len(sizes) - position)
        if size > share:
            return share
        room -= size
    return max(0, room)


def _shortened(result: Message, size: int, cap: int, count: CountTokens) -> Message:
    """The result with its middle left out, so that it costs `cap` tokens of its `size`, or as little as it can."""
    text = result.text
    kept = len(text) * cap // size
    while True:
        head, tail = kept - kept // 4, kept // 4
        left_out = f"\n[... {len(text) - kept} characters left out ...]\n"
        short = msgspec.structs.replace(result, content=text[:head] + left_out + text[len(text) - tail :])
        if kept == 0 or count(short) <= cap:
            return short
        kept = kept * 9 // 10
