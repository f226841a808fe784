"""Processes that die, for the tests of recovery: loops that stop dead, what is left of a store, and runs to kill."""

import asyncio
import contextlib
import copy
import itertools
import sqlite3
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from agentflow import Agent, ModelChunk, tool
from agentflow.errors import NotPendingError
from agentflow.events import ApprovalEvent, QuestionEvent, ToolStartEvent
from agentflow.messages import unpaired
from agentflow.models.base import CallRequest
from agentflow.stores.in_memory import InMemoryStore
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import FailingLog, VirtualTimeLoop, call
from agentflow.tools.asking import ask_user

SESSION = "s"
LAPSED = 60.0  # seconds after which no lease of a dead process holds any more, and nothing is too old yet


class Killed(BaseException):
    """The process is dead: nothing of it runs any more, not even a `finally`."""


class MortalLoop(VirtualTimeLoop):
    """Virtual time until it has gone round so many times; then it stops dead, in `run_forever`."""

    left = -1

    def _run_once(self):
        if self.left == 0:
            self.left = -1
            raise Killed
        self.left -= 1
        super()._run_once()


def die(step, play, snapshot):
    """Run `play()` until step `step` of its loop, and what `snapshot()` gives then; None if it came to its end before.

    What is torn down afterwards, so that nothing of it is left in this process, is after the snapshot.
    """
    with asyncio.Runner(loop_factory=MortalLoop) as runner:
        runner.get_loop().left = step
        try:
            runner.run(play())
        except Killed:
            return snapshot()
        runner.get_loop().left = -1
    return None


class Mortal(FailingLog):
    """A store whose process dies as it appends an event for which `when` is: with it `accepted`, or not any more."""

    def __init__(self, store, when, accepted):
        super().__init__(store, fail_at=0)
        self.when = when
        self.accepted = accepted

    async def _pass_on(self, name, *args, **kwargs):
        dies = name == "append" and any(map(self.when, args[1]))
        if not dies or self.accepted:
            result = await super()._pass_on(name, *args, **kwargs)
        if dies:
            asyncio.get_running_loop().left = 0
            await asyncio.sleep(1)  # virtual: a dead process does nothing any more
        return result


def kill_at(make, when, *, accepted=True, said=(), later=LAPSED):
    """What is left, store and deeds, of a process that dies like a `Mortal` store's; at `said`, the turns before."""
    store, done = InMemoryStore(now=lambda: 0.0), []

    async def play():
        agent = make(Mortal(store, when, accepted), done)
        for text in said:
            await agent.chat(text, session_id=SESSION)
        await agent.start("go", session_id=SESSION)

    left = die(-1, play, lambda: (memory_left(store, later=later), list(done)))
    assert left is not None, "it came to its end before"
    return left


# -- what is left of a store ---------------------------------------------------------------------------------


def memory_left(store: InMemoryStore, *, later: float = LAPSED) -> InMemoryStore:
    """The store as it would stand on a disk, looked at `later`: nobody waits in it."""
    left = InMemoryStore(now=lambda: later)
    left._numbers = itertools.count(next(store._numbers))  # a counter cannot be copied
    holds = {session.active_run: key for key, session in store._sessions.items()}
    left._runs = {
        run_id: replace(run, events=list(run.events), waiting=False, session=holds.get(run_id, run.session))
        for run_id, run in store._runs.items()
    }
    left._ended = OrderedDict(store._ended)
    left._sessions = OrderedDict(
        (key, replace(session, turns=dict(session.turns), summaries=dict(session.summaries), waiting=deque()))
        for key, session in store._sessions.items()
    )
    left._outcomes = copy.deepcopy(store._outcomes)
    return left


def file_left(store: SqliteStore, path, *, lapsed: bool = True) -> SqliteStore:
    """A copy of the store's file in `path`, with what was committed; its leases have `lapsed`."""
    with (
        contextlib.closing(sqlite3.connect(store._file.path)) as source,
        contextlib.closing(sqlite3.connect(path)) as left,
    ):
        source.backup(left)
        if lapsed:
            left.execute("UPDATE runs SET leased_until = 0")
            left.execute("UPDATE waiting SET alive_until = 0")
            left.commit()
    return SqliteStore(path)


# -- runs to kill --------------------------------------------------------------------------------------------


def saying(*turns):
    """A model whose reply depends on what it is sent and on nothing else: that survives the death of its process."""

    async def stream(request):
        assert unpaired(request.messages) is None
        number = sum(message.role == "assistant" for message in request.messages)
        turn = turns[number] if number < len(turns) else ("That is all ", "I can tell.")
        calls = [step for step in turn if isinstance(step, CallRequest)]
        for words in turn:
            if isinstance(words, str):
                yield ModelChunk(text=words)
                await asyncio.sleep(0.3)  # virtual, and longer than the micro-batch's window: a delta of its own
        yield ModelChunk(calls=tuple(calls), finish_reason="tool_calls" if calls else "stop")

    return stream


@dataclass(frozen=True)
class Story:
    """A run, or several, and what its tools may do more than once.

    `make(store, done)` gives the agent; its tools write into `done`, which outlives every process. `live(agent)` is
    all that happens in the first one.
    """

    make: Callable[[Any, list[str]], Agent]
    live: Callable[[Agent], Coroutine[Any, Any, Any]]
    again: frozenset[str] = frozenset()


async def attend(chain, *, amend=None):
    """A human who says yes to all that the run waits for, until it ends; with `amend` to other arguments of "slow"."""
    async for event in chain:
        with contextlib.suppress(NotPendingError):  # decided before this human came
            match event:
                case ApprovalEvent():
                    chain.approve(event.call_id, event.arguments_hash)
                case QuestionEvent():
                    chain.answer("the blue one", event.question_id)
                case ToolStartEvent(tool="slow", attempt=1) if amend is not None:
                    await asyncio.sleep(0.05)
                    chain.amend(event.call_id, amend)
                case _:
                    pass


async def one_run(agent):
    await attend(agent.start("go", session_id=SESSION))


async def amended_run(agent):
    await attend(agent.start("go", session_id=SESSION), amend={"what": "b"})


async def two_runs_of_one_session(agent):
    await asyncio.gather(attend(agent.start("go", session_id=SESSION)), attend(agent.start("next", session_id=SESSION)))


def acting(done, name, **declared):
    """A tool that does something that can be counted, somewhere in the middle of its time."""

    async def act(what: str) -> str:
        """Do it."""
        await asyncio.sleep(0.1)
        done.append(f"{name} {what}")
        await asyncio.sleep(0.1)
        return f"{what} is done"

    return tool(name=name, **declared)(act)


def plain(store, done):
    return Agent(model=saying(("Hello ", "there.")), store=store)


def tools(store, done):
    @tool
    async def pour(what: str):
        """Do it in pieces."""
        for piece in "12":
            await asyncio.sleep(0.1)
            done.append(f"pour {what}{piece}")
            yield piece

    turns = (("Let me see. ", call("act", what="a"), call("pour", what="b")), ("And ", call("act", what="c")))
    return Agent(model=saying(*turns), tools=[acting(done, "act"), pour], store=store)


def retries(store, done):
    @tool
    async def limited(what: str) -> object:
        """Do it, but not at once."""
        await asyncio.sleep(0.1)
        done.append(f"asked {what}")
        if done.count(f"asked {what}") < 3:
            return {"error": "TOO_MANY_REQUESTS", "message": "slow down"}
        done.append(f"limited {what}")
        await asyncio.sleep(0.1)
        return "done"

    return Agent(model=saying((call("limited", what="a"),)), tools=[limited], store=store)


def nested(store, done):
    agent = Agent(
        name="a3", model=saying(("I will. ", call("pay", what="5"))), tools=[acting(done, "pay", approval=True)]
    )
    for depth in (2, 1, 0):
        turns = ((f"a{depth} asks ", call(agent.name, input="pay 5")),)
        agent = Agent(
            name=f"a{depth}", model=saying(*turns), tools=[agent.as_tool()], store=store if not depth else None
        )
    return agent


def question(store, done):
    turns = (
        (call("ask_user", question="Which one?"), call("act", what="a")),
        ('{"question": "And which size?", "options": ["S", "L"]}',),
    )
    return Agent(model=saying(*turns), tools=[acting(done, "act"), ask_user], store=store)


def slow(store, done, **declared):
    return Agent(model=saying((call("slow", what="a"),)), tools=[acting(done, "slow", **declared)], store=store)


def idempotent(store, done):
    return slow(store, done, idempotent=True)


def children(store, done):
    below = [
        Agent(name=name, model=saying((call("act", what=name),)), tools=[acting(done, "act")]).as_tool()
        for name in ("left", "right")
    ]
    turns = ((call("left", input="go"), call("right", input="go")),)
    return Agent(model=saying(*turns), tools=below, store=store)


def amended_child(store, done):
    below = Agent(
        name="slow",
        model=saying((call("act", what="a"), call("wait", what="b"))),
        tools=[acting(done, "act", idempotent=True), acting(done, "wait", approval=True)],
    )
    return Agent(model=saying((call("slow", input="go"),)), tools=[below.as_tool()], store=store)


async def amended_child_run(agent):
    await attend(agent.start("go", session_id=SESSION), amend={"input": "go elsewhere"})


def keyed(store, done):
    turns = ((call("act", what="a"),), (call("act", what="a"),))  # twice with one key
    return Agent(model=saying(*turns), tools=[acting(done, "act", idempotency_key=["what"])], store=store)


STORIES = {
    "plain": Story(plain, one_run),
    "tools": Story(tools, one_run),
    "retries": Story(retries, one_run, frozenset({"asked a"})),
    "nested": Story(nested, one_run),
    "question": Story(question, one_run),
    "amended": Story(slow, amended_run),
    "amended, idempotent": Story(idempotent, amended_run, frozenset({"slow a", "slow b"})),
    "amended child": Story(amended_child, amended_child_run, frozenset({"act a"})),
    "children": Story(children, one_run),
    "keyed": Story(keyed, one_run),
    "line": Story(tools, two_runs_of_one_session),
}
