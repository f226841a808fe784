"""What the memory strategies cost and keep, in one scripted support conversation: `python benchmarks/memory.py`.

60 turns, 80 planted facts: what the user says, what tools return, what the assistant promises; 8 of them change later.
Each turn calls a tool, so two requests are counted. Every fact is asked for once later in the conversation and once
after its end: is its value in the request? What a reader without a model answers from the request is compared with the
truth, by intent. Without a model summaries and facts are quotes of the turns. Deterministic, offline, some seconds;
with `--local` the embedded model writes summaries, too.
"""

import argparse
import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from agentflow.memory import MemoryPolicy, Window, due, summarise
from agentflow.memory.extraction import words
from agentflow.memory.facts import extract, relevant, supersede
from agentflow.memory.summary import REPLY_SCHEMA, Ask
from agentflow.memory.summary import extract as extract_summary
from agentflow.messages import Message, ToolCall
from agentflow.models.base import ModelRequest, estimate_message_tokens, estimate_tokens
from agentflow.stores.base import Fact, Session, SessionKey, Summary, Turn

TURNS, FACTS, CHANGES = 60, 80, 8
FACT_TOKENS = 600  # for facts beside a question
KEY = SessionKey("s", "u")

# -- the script ------------------------------------------------------------------------------------------

# What the user says of themself: the intent of asking for it, the sentence, the question, the values.
PROFILE = (
    ("name", "Hi, my name is {}.", "What is my name?", "Ingrid Halvorsen"),
    ("address", "My delivery address is {}.", "What is my delivery address?", "14 Elm Road", "3 Harbour Street"),
    ("phone", "You can reach my phone on {}.", "What is my phone?", "+47 555 0198", "+47 555 0733"),
    ("email", "My email is {}.", "What is my email?", "ingrid.h@example.org", "ih@example.net"),
    ("payment", "Please charge the card ending {}.", "Which card do you charge?", "4471"),
    ("allergy", "I'm allergic to {}.", "What am I allergic to?", "latex"),
    ("contact", "I prefer to be contacted by {}.", "How do I prefer to be contacted?", "text message", "letter"),
    ("colour", "I'd go for the {} one, not the others.", "Which one did I go for?", "turquoise"),
    ("size", "My shoe size is {}.", "What is my shoe size?", "39.5"),
    ("birthday", "We celebrate my birthday on {}.", "When is my birthday?", "17 June"),
    ("work", "I work at {} on weekdays.", "Where do I work?", "the Nordhavn clinic"),
    ("floor", "The lift stops at floor {} only, then there are stairs.", "At which floor does the lift stop?", "6"),
    ("neighbour", "If I'm out, leave it with {} next door.", "Who is next door?", "Mr Okafor", "Ms Lindqvist"),
    ("dog", "Careful at the gate, my dog is called {}.", "What is my dog called?", "Biscuit"),
    ("code", "The code of the front door is {}.", "What is the code of the front door?", "7709", "8816"),
    ("hours", "Nobody is home before {} on workdays.", "When is nobody home on workdays?", "17:30"),
    ("loyalty", "My loyalty number is {}.", "What is my loyalty number?", "LN-88213"),
    ("invoice", "Invoices go to {}.", "Where do invoices go to?", "Halvorsen Design AS"),
    ("tax", "Our VAT id is {}.", "What is our VAT id?", "NO914778271"),
    ("language", "Please always write to me in {}.", "In which language do you write to me?", "Norwegian"),
    ("gift", "The blue lamp was a gift for {}.", "Who was the blue lamp a gift for?", "Maja"),
    ("wrapping", "Never use {} for wrapping.", "What do you never use for wrapping?", "plastic foil"),
    ("budget", "My budget for the desk is {} euros.", "What is my budget for the desk?", "420"),
    ("holiday", "I'm away from {} on.", "From when on am I away?", "9 July"),
    ("sister", "My sister {} may sign for me.", "Which sister may sign for me?", "Solveig"),
    ("insurance", "The insurance policy is {}.", "What is the insurance policy?", "HP-5520-91"),
    ("warranty", "I bought the extended warranty, contract {}.", "What is the contract of the warranty?", "EW-30417"),
    ("store", "I usually pick things up at {}.", "Where do I usually pick things up?", "the Grunerlokka shop"),
    ("voucher", "I still have voucher {}.", "Which voucher do I have?", "SPRING-15-XQ"),
    ("complaint", "The drawer squeaks, it drives me mad: complaint {}.", "Which complaint is on the drawer?", "C-7781"),
)
# What tools return of each order: the intent, the question, and the value made for order number n.
ORDER = (
    ("status", "What is the status of order {}?", lambda n: ("in transit", "delivered", "packed", "on hold")[n % 4]),
    ("carrier", "What is the carrier of order {}?", lambda n: ("DHL", "PostNord", "Bring", "UPS")[n % 4] + f" {n}X"),
    ("total", "What is the total of order {}?", lambda n: f"{40 + 13 * n}.{10 + n}"),
    ("eta", "What is the eta of order {}?", lambda n: f"2025-0{1 + n % 9}-{10 + n}"),
)
ORDERS = 10
# What the assistant promises, of one order each.
PROMISES = (
    ("ticket", "I've opened ticket T-{} for order {}.", "Which ticket is for order {}?", lambda n: f"T-{5500 + 7 * n}"),
)
NOISE = {
    "currency": "EUR", "warehouse": "OSL-2", "channel": "web", "gift": False, "notes": None, "locale": "nb-NO",
    "history": ["created", "paid", "picked", "packed"], "terms": "Returns within thirty days in the original box.",
    "links": {"self": "https://shop.example.org/api/orders/self", "track": "https://shop.example.org/track"},
}  # fmt: skip
ARTICLE = "Open the page, choose the article in question and follow the steps that are shown there one by one. "
SMALL_TALK = ("Thanks so far.", "That helps.", "Alright, go on.", "Okay.", "Good to know.")


@dataclass
class Planted:
    """One fact: its value from which turn on, and when it is asked for."""

    intent: str
    question: str
    values: list[tuple[int, str]]
    asked_at: int = 0

    def value(self, turn: int) -> str:
        return [value for since, value in self.values if since < turn][-1]


@dataclass
class Step:
    """What is said in one turn."""

    said: list[str] = field(default_factory=list)
    order: int | None = None  # looked up
    promises: list[str] = field(default_factory=list)


def script(seed: int = 7) -> tuple[list[Step], list[Planted]]:
    chance = random.Random(seed)
    steps = [Step() for _ in range(TURNS + 1)]  # [0] stays empty: turns are numbered from 1
    facts: list[Planted] = []
    for intent, sentence, question, *values in PROFILE:
        turns = sorted(chance.sample(range(1, 53), len(values)))
        facts.append(Planted(f"profile.{intent}", question, list(zip(turns, values, strict=True))))
        for turn, value in facts[-1].values:
            steps[turn].said.append(sentence.format(value))
    turns = chance.sample(range(1, 41), ORDERS)
    for number, turn in enumerate(turns):
        name, again = 1001 + number, 45 + number if number < 2 else 0  # two are looked up again, and have moved
        steps[turn].order = number
        for intent, question, value in ORDER:
            moves = [(again, "returned")] if again and intent == "status" else []
            facts.append(Planted(f"order.{intent}", question.format(name), [(turn, value(number)), *moves]))
        if again:
            steps[again].order = number
        for intent, sentence, question, value in PROMISES:
            later = turn + chance.randint(0, 3)
            made = value(number)
            steps[later].promises.append(sentence.format(made.removeprefix("T-"), name))
            facts.append(Planted(f"promise.{intent}", question.format(name), [(later, made)]))
    for fact in facts:
        fact.asked_at = chance.randint(fact.values[-1][0] + 1, TURNS)
    assert len(facts) == FACTS and sum(len(fact.values) - 1 for fact in facts) == CHANGES
    return steps, facts


def conversation(steps: list[Step], facts: list[Planted]) -> list[tuple[Message, ...]]:
    """The messages of each turn; what is asked for is never said again in the answer."""
    return [_turn(number, steps[number], facts) for number in range(1, TURNS + 1)]


def _turn(number: int, step: Step, facts: list[Planted]) -> tuple[Message, ...]:
    asked = [fact.question for fact in facts if fact.asked_at == number]
    if step.order is None:
        name, arguments, lookup = (
            "search_help",
            {"topic": f"topic {number}"},
            f"What do your pages say on topic {number}?",
        )
        result = NOISE | {"topic": f"topic {number}", "text": ARTICLE * (8 + number % 17)}
    else:
        order = 1001 + step.order
        name, arguments, lookup = "get_order", {"order_id": order}, f"Please look up order {order}."
        known = {fact.question: fact.value(number + 1) for fact in facts if fact.values[0][0] <= number}
        fields = {intent: known[question.format(order)] for intent, question, _ in ORDER}
        result = {"order_id": order} | fields | NOISE
    call = ToolCall(call_id=f"call-{number}", name=name, raw_arguments=json.dumps(arguments))
    said = " ".join((SMALL_TALK[number % len(SMALL_TALK)], *step.said, *asked, lookup))
    answer = " ".join(("I have looked into that for you; all I know of it is above.", *step.promises, "What else?"))
    return (
        Message(role="user", content=said),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content="[success]\n" + json.dumps(result), call_id=call.call_id, name=name),
        Message(role="assistant", content=answer),
    )


# -- a session under one strategy ------------------------------------------------------------------------


@dataclass
class Figures:
    """What one strategy came to. `requests` are all messages that were sent, once per turn."""

    tokens: int = 0
    last_tokens: int = 0
    summary_tokens: int = 0
    asked: Counter[bool] = field(default_factory=Counter)
    at_the_end: Counter[bool] = field(default_factory=Counter)
    answers: dict[str, Counter[bool]] = field(default_factory=lambda: defaultdict(Counter))
    sent: set[str] = field(default_factory=set)
    summaries: list[Summary] = field(default_factory=list)
    rejected: list[Summary] = field(default_factory=list)


class Conversation:
    """What the chain does around its turns: opens the window, stores the turn, compresses beside it."""

    def __init__(self, strategy: str, ask: Ask | None, room: int) -> None:
        self.policy = MemoryPolicy(strategy=strategy)
        self.figures = Figures()
        self._ask = ask
        self._room = room
        self._turns: list[Turn] = []
        self._summaries: dict[tuple[int, int], Summary] = {}
        self._facts: dict[str, Fact] = {}

    def session(self) -> Session:
        return Session(
            key=KEY, version=len(self._turns), turns=tuple(self._turns), summaries=tuple(self._summaries.values())
        )

    def shown(self, running: Sequence[Message]) -> tuple[Message, ...]:
        facts = relevant(tuple(self._facts.values()), running[0].text, FACT_TOKENS, estimate_tokens)
        messages = Window(self.session(), self.policy, estimate_message_tokens, facts).messages(running)
        self.figures.sent.update(message.text for message in messages)
        return messages

    async def store(self, messages: tuple[Message, ...]) -> None:
        number = len(self._turns) + 1
        self._turns.append(Turn(run_id=f"run{number}", outcome="final", messages=messages))
        turns = due(self.policy, number, self._summaries.values())
        if turns is not None:
            originals = self._turns[turns[0] - 1 : turns[-1]]
            found = extract(originals, turns[0], "u")
            self._facts |= {fact.id: fact for fact in supersede(tuple(self._facts.values()), found)}
            summary = await self._summary(originals, turns[0])
            self._summaries[summary.first, summary.last] = summary
            self.figures.summaries.append(summary)

    async def _summary(self, turns: Sequence[Turn], first: int) -> Summary:
        if self._ask is None:
            return extract_summary(turns, first)
        made = await summarise(
            turns,
            first,
            self._counted,
            fits=lambda asked: tokens(asked) <= self._room,
            confidence=self.policy.confidence,
        )
        self.figures.rejected += made.rejected
        return made.summary

    async def _counted(self, messages: tuple[Message, ...]) -> str:
        assert self._ask is not None
        self.figures.summary_tokens += tokens(messages)
        return await self._ask(messages)


def tokens(messages: Sequence[Message]) -> int:
    return sum(map(estimate_message_tokens, messages))


def holds(messages: Sequence[Message], value: str) -> bool:
    return any(value in message.text for message in messages)


COMMON = frozenset(
    words("a am an and are at by do does for from go have how i in is it me my no of on or our that the this to")
    + words("we what when where which who you")
)


def stems(text: str) -> set[str]:
    return {word.removesuffix("s") for word in words(text) if word not in COMMON}


def read(messages: Sequence[Message], question: str) -> str:
    """The statement that shares most with the question, rare words counting more; of equals the newest."""
    calls = {call.call_id: call.raw_arguments for message in messages for call in message.tool_calls}
    statements: list[str] = []
    for message in messages:
        if message.role == "tool":
            statements.append(f"{message.name} {calls[message.call_id or '']} {message.text}")
        else:
            pieces = message.text.replace("? ", "?\n").replace(". ", ".\n").splitlines()
            statements += [piece for piece in pieces if not piece.endswith("?")]
    said = [stems(statement) for statement in statements]
    frequency = Counter(stem for known in said for stem in known)
    asked = stems(question)
    scores = [sum(1 / frequency[stem] for stem in known & asked) for known in said]
    best = max(range(len(said)), key=lambda at: (scores[at], at), default=None)
    return "" if best is None else statements[best]


async def run(strategy: str, ask: Ask | None = None, room: int = 100_000) -> Figures:
    steps, facts = script()
    talk = Conversation(strategy, ask, room)
    figures = talk.figures
    for number, messages in enumerate(conversation(steps, facts), 1):
        first = talk.shown(messages[:1])
        figures.last_tokens = tokens(first) + tokens(talk.shown(messages[:3]))
        figures.tokens += figures.last_tokens
        for fact in facts:
            if fact.asked_at == number:
                figures.asked[holds(first[:-1], fact.value(number))] += 1
        await talk.store(messages)
    for fact in facts:
        question = Message(role="user", content=fact.question)
        past, value = talk.shown((question,))[:-1], fact.value(TURNS + 1)
        figures.at_the_end[holds(past, value)] += 1
        figures.answers[fact.intent.partition(".")[0]][value in read(past, fact.question)] += 1
    return figures


# -- models that write summaries -------------------------------------------------------------------------


class Liar:
    """Writes down what was said, and in every second reply something that was not: sure of it, or not sure."""

    def __init__(self) -> None:
        self.replies = 0
        self.lies: list[str] = []

    async def __call__(self, messages: tuple[Message, ...]) -> str:
        facts = [line for line in map(json.loads, messages[1].text.splitlines()) if "user" in line]
        reply = {"facts": [line["user"][:200] for line in facts][:20], "confidence": 0.95}
        self.replies += 1
        if self.replies % 2:
            unsure = self.replies % 4 == 1
            lie = "The customer never pays." if unsure else f"A refund of {9000 + self.replies} euros was promised."
            self.lies.append(lie)
            reply = {"facts": [*reply["facts"], lie], "confidence": 0.3 if unsure else 0.95}
        return json.dumps(reply)


def local_writer() -> tuple[Ask, Callable[[], object]]:
    """The embedded model as a writer of summaries, and what closes it."""
    from agentflow.models.local import LocalModel  # an optional dependency

    model = LocalModel()

    async def ask(messages: tuple[Message, ...]) -> str:
        request = ModelRequest(messages=messages, response_format=REPLY_SCHEMA, max_tokens=300, temperature=0.0)
        async with aclosing(model.stream(request)) as chunks:
            return "".join([chunk.text async for chunk in chunks])

    return ask, model.aclose


# -- figures ---------------------------------------------------------------------------------------------


def share(counts: Counter[bool]) -> float:
    return 100 * counts[True] / max(1, counts.total())


def row(name: str, figures: Figures, full: Figures) -> str:
    answers: Counter[bool] = sum(figures.answers.values(), Counter())
    cells = (
        f"{figures.tokens:,}",
        f"{100 * (figures.tokens / full.tokens - 1):+.1f} %",
        f"{100 * (figures.last_tokens / full.last_tokens - 1):+.1f} %",
        f"{figures.summary_tokens:,}",
        f"{share(figures.asked):.1f} %",
        f"{share(figures.at_the_end):.1f} %",
        f"{share(answers):.1f} %",
    )
    return f"| {name} | {' | '.join(cells)} |"


async def main(local: bool) -> None:
    full = await run("full")
    print("| strategy | tokens | against full | last turn | for summaries | facts when asked | at the end | answers |")
    print("|---|---|---|---|---|---|---|---|")
    results = {"full": full}
    for strategy in ("rolling", "layered"):
        results[strategy] = await run(strategy)
    for name, figures in results.items():
        print(row(name, figures, full))
    print("\n| intent | questions | full | rolling | layered |\n|---|---|---|---|---|")
    for intent, counts in full.answers.items():
        shares = " | ".join(f"{share(figures.answers[intent]):.1f} %" for figures in results.values())
        print(f"| {intent} | {counts.total()} | {shares} |")
    liar = Liar()
    lied = await run("rolling", liar)
    sent = sum(any(lie in text for text in lied.sent) for lie in set(liar.lies))
    print(f"\nfalsehoods from a model: {len(liar.lies)}, summaries rejected: {len(lied.rejected)}, in requests: {sent}")
    if local:
        await with_local_model(full)


async def with_local_model(full: Figures) -> None:
    ask, close = local_writer()
    began = time.perf_counter()
    figures = await run("layered", ask, room=2500)
    await close()
    print("\n" + row("layered, the embedded model", figures, full))
    kept = sum(summary.confidence < 1 for summary in figures.summaries)
    print(f"summaries: {len(figures.summaries)}, of which the model's own {kept}; rejected {len(figures.rejected)}")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--local", action="store_true", help="the embedded model writes summaries, too (ten minutes)")
    asyncio.run(main(parser.parse_args().local))
