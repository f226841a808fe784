"""The protocols every store implements, and the records they speak of.

Only contracts. A backend is one class for all of them, since a run's log, its session and its lease must be found,
freed and dropped together; `agentflow.testing.store_suite` checks one against what is written here.

What holds for every method: it is done wholly or not at all; when it has returned, every reader of the same store
sees it; when it raises a `StoreError` that is no more special, it may or may not have been done, and doing it again
is allowed. Cancelling a call leaves it done or not done, never half. Lists come in pages, so that a slow reader holds
nothing open: `before` and `after` name the last record that was seen.

Nothing here is kept for ever: finished runs, sessions that no run holds, and outcomes go with their age or when there
are too many, oldest first. A run that has not ended and a session that is held never go.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from agentflow.events import AgentEvent, CancelReason
from agentflow.messages import Message

MAX_WAITING = 8  # runs that may wait for a busy session
MAX_FACTS = 1000  # facts that are kept of one user
MAX_LETTERS = 100  # letters that may lie in the inbox of a run
MAX_LETTER_BYTES = 4 * 1024 * 1024  # of all of them, encoded

BusyPolicy: TypeAlias = Literal["queue", "reject", "supersede"]


class SessionKey(msgspec.Struct, frozen=True):
    """A session belongs to one user; the same id of another user is another session."""

    session_id: str
    user_id: str | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange as it is kept: the user's message and all that followed, paired.

    `outcome` is the run's terminal event; a turn that did not end `final` holds what there was until then.
    """

    run_id: str
    outcome: Literal["final", "failed", "cancelled"]
    messages: tuple[Message, ...]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What the turns `first` to `last` of a session say, in short. Turns are numbered from 1.

    `confidence` is from 0 to 1. `pinned` are sentences that must stay word for word, as `facts`, `decisions` and
    `questions` (open ones) are the summary's parts; `text` says all of it. `created_at` is RFC 3339 in UTC.
    """

    first: int
    last: int
    text: str
    confidence: float
    facts: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    created_at: str = ""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a run finds it. `version` grows by one with every turn stored.

    `turns` are the last ones, as many as were asked for, the oldest first; the last of them is number `version`.
    `summaries` are in the order of their turns. `number` tells this session from one of the same key that was deleted.
    """

    key: SessionKey
    version: int
    turns: tuple[Turn, ...]
    summaries: tuple[Summary, ...] = ()
    number: int = 0


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list. `number` grows with every session that is made; `used_at` is in seconds since 1970 UTC."""

    key: SessionKey
    number: int
    version: int
    used_at: float
    active_run: str | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a store knows of a run beside its events. `number` grows with every run that is made.

    `last` is the `seq` of its last event, 0 before the first; `session` is the one it opened, if any. `closing` are
    the events that `close_session` announced and that `append` has not seen yet: empty but for a run that is just
    ending, or whose process died in that moment.
    """

    run_id: str
    number: int
    session: SessionKey | None = None
    last: int = 0
    ended: bool = False
    closing: tuple[AgentEvent, ...] = ()


class Letter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody asks of a run from anywhere, for its owner to judge.

    `target` is the question or call it is about; `text` is an answer, why a call is rejected, or the reason for which
    the run is to end; `by` says who asks. Of two letters with one `id` in an inbox the second is not kept.
    """

    id: str
    verb: Literal["cancel", "answer", "approve", "reject", "amend"]
    target: str | None = None
    text: str = ""
    arguments: dict[str, Any] | None = None
    arguments_hash: str | None = None
    by: str | None = None


def cancel_letter(reason: CancelReason) -> Letter:
    """The letter that asks a run to end: there is one at most, so that the first reason stays."""
    return Letter(id="cancel", verb="cancel", text=reason)


class OutcomeKey(msgspec.Struct, frozen=True):
    """What a user's idempotency key stands for: one effect of one tool for one user, over all runs."""

    tool: str
    key: str
    user_id: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a call with an idempotency key ended: `result` is the text that its model got."""

    run_id: str
    call_id: str
    tool: str
    result: str
    truncated: bool = False


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Something known of a user, from turn `turn` of the run's session.

    `subject` is what it is about, such as "city": of two facts with one subject the newer supersedes the older, which
    then names it in `superseded_by`. `confidence` is from 0 to 1, `created_at` RFC 3339 in UTC.
    """

    id: str
    user_id: str
    text: str
    subject: str = ""
    run_id: str = ""
    turn: int = 0
    confidence: float = 1.0
    created_at: str = ""
    superseded_by: str | None = None


class EventLog(Protocol):
    """The sequenced log of each run. An event exists once `append` has returned."""

    async def append(self, run_id: str, events: Sequence[AgentEvent], *, token: int | None = None) -> None:
        """Add all of `events` or none. Their `seq` must continue the log's last by one.

        With `token` only as long as it is the last that `acquire_lease` gave for this run: else `LeaseLostError`.
        Raises `StoreError` when it could not be done; whether the events are in is then told by `last`.
        """
        ...

    async def read(self, run_id: str, after: int, limit: int) -> Sequence[AgentEvent]:
        """Up to `limit` events with `seq > after`, in order. Empty if there are none, or no such run."""
        ...

    async def wait(self, run_id: str, after: int) -> None:
        """Return once there may be an event with `seq > after`; at once if there is. May return early.

        Raises `RunNotFoundError` for a run that has no event here.
        """
        ...

    async def last(self, run_id: str) -> int | None:
        """The last `seq` of the run, None if it has no event here."""
        ...


class RunStore(Protocol):
    """The runs themselves: which there are, who works on each, what it is asked for, and whether anybody reads it.

    A lease names the one owner of a run that is alive, by any text. It lapses `ttl` seconds after it was last
    acquired or renewed, counted by a clock that nobody sets; from then on it is anybody's. A run is owned from before
    `open_session` until after its last append, so that a recovery takes nobody's run.
    """

    async def find_run(self, run_id: str) -> RunRecord | None:
        """The record of one run that has an event, is leased, or holds a session or waits for one; else None."""
        ...

    async def list_runs(
        self, *, before: int | None = None, limit: int = 100, open_only: bool = False
    ) -> Sequence[RunRecord]:
        """Up to `limit` runs with `number < before`, the newest first; with `open_only` those that have not ended."""
        ...

    async def acquire_lease(self, run_id: str, owner: str, ttl: float) -> int | None:
        """Make `owner` the run's owner; None if another's lease has not lapsed.

        The token is higher than any that was given for this run before. The owner itself keeps its token.
        """
        ...

    async def renew_lease(self, run_id: str, token: int, ttl: float) -> bool:
        """Let the lease last for another `ttl` seconds, also one that has lapsed and nobody has taken.

        Tells whether letters lie in the run's inbox: so its owner hears of those that `listen` has missed. Raises
        `LeaseLostError` if it is another's by now, or was released.
        """
        ...

    async def release_lease(self, run_id: str, token: int) -> None:
        """Give the lease up, if it is still this one. Its token is no good from then on."""
        ...

    async def send_letter(self, run_id: str, letter: Letter) -> None:
        """Put a letter into the run's inbox, where it lies until it is deleted or the run ends.

        Nothing happens if the run has ended or is unknown. Raises `LimitError` for more than `MAX_LETTERS`, or
        `MAX_LETTER_BYTES`; a cancel always has room.
        """
        ...

    async def list_letters(self, run_id: str) -> Sequence[Letter]:
        """What lies in the run's inbox, in the order in which it was sent."""
        ...

    async def delete_letters(self, run_id: str, ids: Sequence[str]) -> None:
        """Drop letters that were seen to. Nothing happens where there are none."""
        ...

    def listen(self, run_id: str, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` on the running loop, until what is given back is called, when a letter was sent to the run.

        It may be called for nothing, and a server that cannot be reached for a while may make it miss one. It costs no
        task for each run.
        """
        ...

    async def mark_read(self, run_id: str, ttl: float) -> bool:
        """Somebody reads the run, and counts as its reader for `ttl` seconds by a clock that nobody sets.

        A shorter time does not replace a longer one. False, and nothing happens, if it has ended or is unknown.
        """
        ...

    async def read_for(self, run_id: str) -> float:
        """For how many seconds the run still has a reader, whoever has marked it; 0.0 if it has none."""
        ...


class SessionStore(Protocol):
    """The sessions. One run at a time holds a session, from `open_session` to `close_session`.

    A session goes with its turns and its summaries. It stays held when its run's process dies, until a recovery
    ends that run.
    """

    async def open_session(
        self, key: SessionKey, run_id: str, *, busy: BusyPolicy = "queue", last_turns: int | None = None
    ) -> Session:
        """Make `run_id` the session's active run and give the session as it is then, with its `last_turns` turns.

        A busy session is waited for, first come first served; with `busy="supersede"` its holder and those before us
        in the line are asked to end (`cancel_letter`), with "reject" `SessionBusyError` is raised at once. More than
        `MAX_WAITING` waiting raise `SessionBusyError`. Opening again what the run already holds is allowed. Cancelling
        the wait leaves the line, as does the end of the process that waits.
        """
        ...

    async def close_session(
        self,
        key: SessionKey,
        run_id: str,
        turn: Turn | None,
        closing: Sequence[AgentEvent] = (),
        *,
        token: int | None = None,
    ) -> None:
        """Store `turn` (None: nothing) and free the session, in one write. Doing it again changes nothing.

        `closing` are the events that will end the run's log. They are kept until they are appended, so that a
        recovery can append them where its process died in between: see `RunRecord`. A run that does not hold the
        session changes nothing. For `token` see `append`: who has lost the run neither ends it nor frees its session.
        """
        ...

    async def read_turns(self, key: SessionKey, after: int, limit: int) -> Sequence[Turn]:
        """Up to `limit` turns with a number over `after`, in order. Empty if there are none, or no such session."""
        ...

    async def list_sessions(
        self, user_id: str | None, *, before: int | None = None, limit: int = 100
    ) -> Sequence[SessionInfo]:
        """Up to `limit` sessions of this user with `number < before`, the newest first. None: of those without user."""
        ...

    async def find_session(self, key: SessionKey) -> SessionInfo | None:
        """The session as it is now, None if there is none."""
        ...

    async def delete_session(self, key: SessionKey) -> None:
        """Drop what is kept: turns, summaries, and the logs of finished runs; ask its runs to end, waiting ones too.

        It is not found any more, and what its active run still stores is not kept. Until that run has closed it the key
        stays busy; who opens it then finds a new session.
        """
        ...

    async def keep_summary(self, seen: Session | SessionInfo, summary: Summary) -> bool:
        """Add a summary, or replace that of the same turns: whether it was, since the session is still as `seen`.

        That is the session of the same `number` and `version`. Runs are not hindered by it, nor is it by them: whoever
        finds the session changed looks at it again.
        """
        ...


class OutcomeIndex(Protocol):
    """What was done under the idempotency keys of users, so that no later attempt or run does it again."""

    async def claim_outcome(self, key: OutcomeKey, call_id: str) -> Outcome | None:
        """The stored outcome; else the key is claimed for this call, and None.

        A call may claim again what it has claimed. Raises `OutcomePendingError` if another call has, and there is
        neither an outcome nor a release: whether the effect took place is then not known.
        """
        ...

    async def keep_outcome(self, key: OutcomeKey, call_id: str, outcome: Outcome) -> None:
        """Store how the call that claimed the key ended. The first outcome stays; doing it again changes nothing.

        Raises `OutcomePendingError` if another call holds the key.
        """
        ...

    async def release_outcome(self, key: OutcomeKey, call_id: str) -> None:
        """Nothing was done: free the key, if this call has claimed it and no outcome is stored."""
        ...


class FactStore(Protocol):
    """What is known of each user, over all sessions. Kept until it is deleted."""

    async def put_facts(self, facts: Sequence[Fact]) -> None:
        """Store all of `facts` or none; one of the same user and id is replaced.

        A fact and the older one that it supersedes go in together. Over `MAX_FACTS` of one user the oldest go,
        superseded ones first.
        """
        ...

    async def list_facts(self, user_id: str, *, superseded: bool = False) -> Sequence[Fact]:
        """The facts of this user in the order in which they were first put, with `superseded` also those."""
        ...

    async def delete_fact(self, user_id: str, fact_id: str) -> None:
        """Drop a fact. Nothing happens if there is none."""
        ...


class Store(EventLog, RunStore, SessionStore, OutcomeIndex, FactStore, Protocol):
    """What an agent keeps its runs and sessions in."""

    async def aclose(self) -> None:
        """Let go of connections, files and threads. Doing it again is allowed; nothing else is after it."""
        ...
