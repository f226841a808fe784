"""Facts about a user: taken from turns, kept free of contradiction, chosen for a question.

Pure: storing, listing and deleting them is the store's business. What is found in a turn is for `extraction` to say.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from agentflow.memory.extraction import findings, words
from agentflow.stores.base import Fact, Turn

# How sure a fact is, by who said it: a user of themself, a tool, the assistant.
_CONFIDENCE = {"said": 0.9, "returned": 0.8, "decided": 0.7, "answered": 0.7}


def extract(turns: Sequence[Turn], first: int, user_id: str, created_at: str = "") -> tuple[Fact, ...]:
    """The facts of `turns`, of which the first is number `first`, in the order they were said.

    Their ids follow from the runs' and the places in them, so that a turn that is looked at again, alone or with
    others, gives no fact twice.
    """
    places = [(number, turn.run_id, at) for number, turn in enumerate(turns, first) for at in range(len(turn.messages))]
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))
    facts = []
    for finding in findings([message for turn in turns for message in turn.messages]):
        number, run_id, at = places[finding.at]
        place = f"{run_id}-{at}"
        fact = Fact(
            id=f"{place}-{next(numbers[place])}",
            user_id=user_id,
            text=finding.text,
            subject=finding.subject,
            run_id=run_id,
            turn=number,
            confidence=_CONFIDENCE[finding.kind],
            created_at=created_at,
        )
        facts.append(fact)
    return tuple(facts)


def supersede(known: Sequence[Fact], new: Sequence[Fact]) -> tuple[Fact, ...]:
    """What to put into the store for the facts `new`, in order of time, given those that are `known`.

    A newer fact of the same subject supersedes the older, a repeated text changes nothing. One without a subject
    supersedes nothing.
    """
    current = {_topic(fact): fact for fact in known if fact.superseded_by is None}
    ids = {fact.id for fact in known}
    changed: dict[str, Fact] = {}
    for fact in new:
        older = current.get(_topic(fact))
        if fact.id in ids or (older is not None and older.text == fact.text):
            continue
        if older is not None:
            changed[older.id] = msgspec.structs.replace(older, superseded_by=fact.id)
        current[_topic(fact)] = changed[fact.id] = fact
    return tuple(changed.values())


def correct(fact: Fact, text: str, fact_id: str, created_at: str = "") -> tuple[Fact, Fact]:
    """What to put into the store when a person says what is right instead: the new fact, and the old one superseded."""
    right = msgspec.structs.replace(fact, id=fact_id, text=text, confidence=1.0, created_at=created_at)
    return right, msgspec.structs.replace(fact, superseded_by=fact_id)


def relevant(
    facts: Sequence[Fact], question: str, budget: int, count: Callable[[str], int], confidence: float = 0.6
) -> tuple[Fact, ...]:
    """The facts to show beside `question`, in the order of `facts`, as many as `budget` tokens have room for.

    First come those that share words with it, rare words counting more, the newer among equals; then what the user
    said of themself. Superseded ones and those under `confidence` are left out. `count` tells the tokens of a text.
    """
    usable = [fact for fact in facts if fact.superseded_by is None and fact.confidence >= confidence]
    said = [_stems(f"{fact.subject} {fact.text}") for fact in usable]
    frequency = Counter(stem for stems in said for stem in stems)
    asked = _stems(question)
    scores = [sum(1 / frequency[stem] for stem in stems & asked) for stems in said]
    order = sorted(range(len(usable)), key=lambda at: (scores[at], at), reverse=True)
    chosen: list[int] = []
    for at in order:
        cost = count(usable[at].text)
        if cost <= budget and (scores[at] or usable[at].confidence >= _CONFIDENCE["said"]):
            budget -= cost
            chosen.append(at)
    return tuple(usable[at] for at in sorted(chosen))


def _topic(fact: Fact) -> tuple[str, str]:
    """What can be said only once: what is about the same subject, or else the very same words."""
    return (fact.subject, "") if fact.subject else ("", fact.text)


def _stems(text: str) -> set[str]:
    """Words for comparing: without a plural's ending; of a script without spaces, each pair of characters."""
    found = {word.removesuffix("s") for word in words(text)}
    ideographs = "".join(character if character >= "\u2e80" else " " for character in text)
    return found | {ideographs[at : at + 2] for at in range(len(ideographs) - 1) if " " not in ideographs[at : at + 2]}
