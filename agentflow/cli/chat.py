"""The messages of one session, one run after the other: signals and people's decisions in, exit code out.

Where messages come from, how events are shown and how people are asked is the caller's business.
"""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TypeAlias

from agentflow.agent import Agent
from agentflow.chain import AgentChain
from agentflow.cli.prompts import Decision, Waiting, summary
from agentflow.errors import NotPendingError, ToolArgumentsError
from agentflow.events import (
    AgentEvent,
    CancelledEvent,
    DeltaEvent,
    FailedEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    RunError,
    State,
    StateEvent,
)
from agentflow.stores.base import SessionKey, Store
from agentflow.streams import TaskOwner

Ask: TypeAlias = Callable[[Waiting], Decision]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CANCELLED = 130

_CHECK_ADDRESS = "check that the server runs and that its address (--base-url) is right"
_CHECK_MODEL = "check the model (--model) and the address (--base-url)"
_CHECK_KEY = "check the provider's key"

# Calls that failed because of what they were started with: the kind of error, what its message says (a `failed` event
# carries no status, so this reads our own words in `models`), and what to do.
_SETUP_FAULTS = (
    ("config", "", ""),
    ("connection", "", _CHECK_ADDRESS),
    ("timeout", "did not accept a connection", _CHECK_ADDRESS),
    ("status", r"answered 40[13]\b", _CHECK_KEY),
    ("status", r"answered 404\b", _CHECK_MODEL),
    ("status", r"answered 400: .*{model}", _CHECK_MODEL),  # as Mistral does for a model it does not know
)


def converse(
    agent: Agent,
    messages: Iterable[str],
    show: Callable[[AgentEvent], None],
    complain: Callable[[str], None],
    *,
    store: Store | None = None,
    ask: Ask | None = None,
    session_id: str | None = None,
    patient: bool = False,
) -> int:
    """Send the messages in order, in one session, and close the agent and its `store`. Returns the exit code.

    The first run that does not end `final` is the last, unless `patient`; then it is only shown. `complain` is
    given one line for each run that failed or did not end in its time. `ask` is called for each question and approval
    once the run can do nothing without it; where it raises `EOFError` the run is cancelled. Without `ask` a run that
    waits for people is cancelled and has failed, and `complain` is told what it waited for.

    Ctrl-C and SIGTERM cancel the run that is going on, also one that waits; a second one ends the program at once.
    Between runs they do what they did before, and one that was ignored at the start, as shells do for jobs in the
    background, stays ignored. Raises what `agent.stream` and `show` raise, and `StoreError`.
    """
    code, held = 0, None
    with asyncio.Runner() as runner:
        try:
            if store is not None:
                held = runner.run(_look(store, session_id, complain))
            for message in messages:
                code, session_id = runner.run(_turn(agent, message, session_id, show, complain, ask, held))
                held = None
                if patient:
                    code = 0
                elif code:
                    break
        finally:
            with _signals(_leave):
                runner.run(agent.aclose())
                if store is not None:
                    runner.run(store.aclose())
        if agent.abandoned:
            os._exit(code)  # a tool ignores its cancel: to close the loop would be to wait for it
    return code


async def _look(store: Store, session_id: str | None, complain: Callable[[str], None]) -> str | None:
    """Before anything begins: raise `StoreError` if the store cannot be written; which run holds the session."""
    await store.release_lease("", 0)  # a write that changes nothing
    info = await store.find_session(SessionKey(session_id)) if session_id is not None else None
    if info is None or info.active_run is None:
        return None
    complain(
        f"session {session_id!r} is held by run {info.active_run}; if the process of that run has died, the run goes "
        "on here within 15 seconds, and the message after it"
    )
    return info.active_run


async def _take_over(agent: Agent, run_id: str) -> None:
    """Go on with a run whose process has died, once its lease has lapsed; for as long as this is not cancelled."""
    while not await agent.recover(run_id):  # noqa: ASYNC110  a lease lapses without a sign
        await asyncio.sleep(1)  # nothing tells that a process has died: its lease lapses


async def _turn(
    agent: Agent,
    message: str,
    session_id: str | None,
    show: Callable[[AgentEvent], None],
    complain: Callable[[str], None],
    ask: Ask | None,
    held: str | None = None,
) -> tuple[int, str]:
    """One run, shown; its exit code and its session, which `held` may hold until then."""
    chain, tasks = agent.stream(message, session_id=session_id), TaskOwner()
    verdict = _Verdict(complain)
    if held is not None:
        tasks.spawn(_take_over(agent, held), name=f"agentflow taking over {held}")
    with _signals(_Canceller(chain)):
        try:
            async for event in chain:
                show(event)
                verdict.see(event)
                if _is_suspended(event) and chain.state is State.SUSPENDED:
                    await _settle(chain, ask, complain)
        finally:
            await tasks.aclose()
    return verdict.code, chain.session_id


def _is_suspended(event: AgentEvent) -> bool:
    """Whether it says that the whole run waits; a chain below the root may wait while others go on."""
    return isinstance(event, StateEvent) and event.current is State.SUSPENDED and event.chain_id == event.run_id


async def _settle(chain: AgentChain, ask: Ask | None, complain: Callable[[str], None]) -> None:
    """Get all decisions that a suspended run waits for, or cancel it."""
    waiting: Sequence[Waiting] = (await chain.reply()).pending
    if ask is None:
        for one in waiting:
            complain(f"nobody can decide here: {summary(one)}")
        chain.cancel("disconnect")
        return
    try:
        while waiting:
            # Nothing of the run goes on meanwhile, so the event loop may stand still; hence no decision is made
            # before all are known, as it would begin what the next question then holds up.
            with _signals(_interrupt):
                decisions = [(one, ask(one)) for one in waiting]
            await asyncio.sleep(0)  # what has expired while a person thought comes first
            waiting = [one for one, decision in decisions if not _is_made(decision, chain, complain)]
    except (EOFError, KeyboardInterrupt) as left:
        chain.cancel("shutdown" if signal.SIGTERM in left.args else "user")


def _is_made(decision: Decision, chain: AgentChain, complain: Callable[[str], None]) -> bool:
    """Tell the run the decision; False if it has to be taken once more."""
    try:
        decision(chain)
    except ToolArgumentsError as error:
        complain(str(error))
        return False
    except NotPendingError as error:
        complain(str(error))
    return True


class _Verdict:
    """What a run's events come to: `code`, the exit code, and the lines that are said of its end."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self.code = 0
        self._complain = complain
        self._model: str | None = ""  # that was asked and has not answered yet; None once one has

    def see(self, event: AgentEvent) -> None:
        """Take the next event."""
        if isinstance(event, ModelStartEvent):
            self._model = self._model if self._model is None else event.model
        elif isinstance(event, DeltaEvent | ModelCompleteEvent):
            self._model = None
        elif isinstance(event, CancelledEvent):
            failed = event.reason in ("timeout", "disconnect")  # the latter is our own, in `_settle`
            self.code = EXIT_FAILED if failed else EXIT_CANCELLED
            if event.reason == "timeout":
                self._complain("the run did not end within its time: chain.timeout sets it")
        elif isinstance(event, FailedEvent):
            self.code, line = _failure(event.error, self._model)
            self._complain(line)


def _failure(error: RunError, model: str | None) -> tuple[int, str]:
    """The exit code of a failed run, and what to say about it. `model` is None if it has answered anything."""
    line = None if model is None else setup_fault(error.kind, error.message, model)
    return (EXIT_USAGE, line) if line else (EXIT_FAILED, f"the run failed ({error.kind}): {error.message}")


def setup_fault(kind: str, message: str, model: str | None) -> str | None:
    """What to say about a call's error that comes from how it was set up; None for an error that does not.

    `model` is the one that was asked, None if it was none in particular.
    """
    for fault, words, advice in _SETUP_FAULTS:
        name = "(?!)" if model is None else re.escape(model)  # the former is found in no message
        if kind == fault and re.search(words.format(model=name), message):
            return f"{message}; {advice}" if advice else message
    return None


class _Canceller:
    """What a signal does during a run: the first cancels it, the second ends the program."""

    def __init__(self, chain: AgentChain) -> None:
        self._chain = chain
        self._loop = asyncio.get_running_loop()
        self._asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            _leave(number, frame)
        self._asked = True
        # Not at once: a signal may come in the middle of anything that this thread does.
        self._loop.call_soon_threadsafe(self._chain.cancel, "shutdown" if number == signal.SIGTERM else "user")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def _leave(number: int, frame: FrameType | None) -> None:
    # Not sys.exit: that would first wait for the event loop, which a tool may hold. All output is written already.
    os._exit(EXIT_CANCELLED)


@contextlib.contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let `handler` have Ctrl-C and SIGTERM, but for those that are ignored."""
    heard = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
