"""Compression: when turns of a session are summarised, which, and which summaries stand for them.

Pure decisions about numbers of turns; it neither reads turns nor writes summaries. A range is always made from the
original turns, never from summaries of them.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from agentflow.stores.base import Summary

Strategy: TypeAlias = Literal["full", "rolling", "layered"]

_LONGEST_RANGE = 48  # turns that are read again for one rolling summary; older ones keep the summary they have


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """What of a session a model is shown.

    `full`: every turn. `rolling`: the last `turns` and one summary of those before, made anew as the session grows.
    `layered`: the same below `layered_from` turns; from there on each summary stays and covers its own range, and
    facts about the user are added. Summaries and facts under `confidence` (0 to 1) are never shown to a model.
    """

    strategy: Strategy = "rolling"
    turns: int = 12
    layered_from: int = 36
    confidence: float = 0.6

    def is_layered(self, version: int) -> bool:
        """Whether a session of `version` turns is shown in layers."""
        return self.strategy == "layered" and version >= self.layered_from


def cover(summaries: Iterable[Summary], confidence: float) -> tuple[Summary, ...]:
    """The summaries that stand for the turns from 1 on: of at least `confidence`, in order, none within another.

    The fewest that reach furthest without leaving a turn out: after a gap nothing is taken.
    """
    usable = deque(sorted((summary for summary in summaries if summary.confidence >= confidence), key=_start))
    taken: list[Summary] = []
    last = 0
    while True:
        reaching = []
        while usable and usable[0].first <= last + 1:
            reaching.append(usable.popleft())
        furthest = max(reaching, key=_reach, default=None)
        if furthest is None or furthest.last <= last:
            return tuple(taken)
        taken.append(furthest)
        last = furthest.last


def _start(summary: Summary) -> int:
    return summary.first


def _reach(summary: Summary) -> tuple[int, float]:
    return summary.last, summary.confidence


def due(policy: MemoryPolicy, version: int, summaries: Iterable[Summary], shown: int | None = None) -> range | None:
    """The numbers of the turns to summarise now that the session has `version` turns; None if there is nothing to do.

    `shown` is how many of the last turns fit into the model's context, if fewer than the policy's. A range is due
    while every turn is still shown or covered, and reaches half a window ahead: so that nothing falls between window
    and summary while it is made, and a summary is made once in half a window of turns.
    """
    if policy.strategy == "full":
        return None
    covering = cover(summaries, policy.confidence)
    covered = covering[-1].last if covering else 0
    window = policy.turns if shown is None else min(policy.turns, shown)
    last = min(version, version - window + max(1, window // 2))
    if covered > version - window or last <= covered:
        return None
    first = covered + 1
    if covering and not policy.is_layered(version) and last - covering[-1].first < _LONGEST_RANGE:
        first = covering[-1].first
    return range(first, last + 1)
