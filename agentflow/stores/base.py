"""The protocols every store implements: the event log of a run, and the sessions.

Only contracts and the data they speak of. A backend is one class for both, since a run's log and its session
must be freed and found together.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from agentflow.events import AgentEvent
from agentflow.messages import Message


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


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a run finds it. `version` grows by one with every turn stored."""

    key: SessionKey
    version: int
    turns: tuple[Turn, ...]


class EventLog(Protocol):
    """The sequenced log of each run. An event exists once `append` has returned."""

    async def append(self, run_id: str, events: Sequence[AgentEvent]) -> None:
        """Add all of `events` or none. Their `seq` must continue the log's last by one.

        Raises `StoreError` when it could not be done; whether the events are in is then told by `last`.
        """
        ...

    async def read(self, run_id: str, after: int, limit: int) -> Sequence[AgentEvent]:
        """Up to `limit` events with `seq > after`, in order. Empty if there are none, or no such run."""
        ...

    async def wait(self, run_id: str, after: int) -> None:
        """Return once there may be an event with `seq > after`; at once if there is. May return early."""
        ...

    async def last(self, run_id: str) -> int | None:
        """The last `seq` of the run, None if no such run is known."""
        ...


class SessionStore(Protocol):
    """The sessions. One run at a time holds a session, from `open_session` to `close_session`."""

    async def open_session(self, key: SessionKey, run_id: str) -> Session:
        """Make `run_id` the session's active run and give the session as it is then.

        A busy session is waited for, first come first served; more than 8 waiting raise `SessionBusyError`.
        Cancelling the wait leaves the line.
        """
        ...

    async def close_session(self, key: SessionKey, run_id: str, turn: Turn | None) -> None:
        """Store `turn` (None: nothing) and free the session, in one write. Doing it again changes nothing."""
        ...


class Store(EventLog, SessionStore, Protocol):
    """What an agent keeps its runs and sessions in."""

    async def aclose(self) -> None:
        """Let go of connections and files. Doing it again is allowed."""
        ...
