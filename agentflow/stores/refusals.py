"""What a store says when it refuses: the same words on every backend.

It makes errors and raises none.
"""

from agentflow.errors import LeaseLostError, OutcomePendingError, RunNotFoundError, SessionBusyError, StoreError
from agentflow.stores.base import OutcomeKey, SessionKey


def does_not_follow(run_id: str, seq: int, last: int) -> StoreError:
    """An append whose events do not continue the log."""
    return StoreError(f"run {run_id!r}: event {seq} cannot follow {last}; nothing was added")


def unknown_run(run_id: str) -> RunNotFoundError:
    """A wait for a run without events."""
    return RunNotFoundError(f"run {run_id!r} is not in this store any more")


def lease_lost(run_id: str, token: int) -> LeaseLostError:
    """A token that is not the run's last, or was given back."""
    return LeaseLostError(f"run {run_id!r}: lease {token} is not held any more, so another may own the run; stop")


def busy(key: SessionKey, holder: str | None, waiting: int) -> SessionBusyError:
    """A session that another run holds, and whose line is full or not wanted."""
    return SessionBusyError(
        f"session {key.session_id!r} is busy with run {holder!r} and {waiting} more wait; "
        "send the message again when one of them has ended"
    )


def outcome_pending(key: OutcomeKey, call_id: str) -> OutcomePendingError:
    """An idempotency key whose claimer has not said how it ended."""
    return OutcomePendingError(
        f"idempotency key {key.key!r} of tool {key.tool!r} is claimed by call {call_id!r}, which has not said how it "
        "ended: the effect may have taken place; look before it is done again"
    )
