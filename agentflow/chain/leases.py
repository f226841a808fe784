"""The leases of one agent's live runs: taken when a run begins, renewed while it lives, given back at its end.

A lease names who works on a run, so that a recovery elsewhere takes nobody's. Who has one hears of letters to its run;
what they ask for is not read here. What a token is good for is in `stores.base`.
"""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from agentflow.errors import LeaseLostError, StoreError
from agentflow.stores.base import Store
from agentflow.streams import Clock, TaskOwner, Timer

logger = logging.getLogger(__name__)

LEASE_SECONDS = 15.0
_RENEWALS = 3  # in the time of one lease: two may fail


@dataclass(frozen=True, slots=True)
class _Lease:
    token: int
    on_lost: Callable[[StoreError], None]
    on_letters: Callable[[], None]
    leave: Callable[[], None]


class Leases:
    """Takes and keeps leases. There is one timer for all of them, and none while there are none."""

    def __init__(self, store: Store, clock: Clock, tasks: TaskOwner) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._held: dict[str, _Lease] = {}
        self._timer: Timer | None = None

    async def take(
        self,
        run_id: str,
        on_lost: Callable[[StoreError], None],
        on_letters: Callable[[], None] = lambda: None,
    ) -> int | None:
        """The token with which the run may be written; None if another works on it.

        `on_lost` is called, once, when another has taken it over; `on_letters` when the store tells of letters, and
        with every renewal, three in the time of a lease, while any lie in the inbox.
        """
        # An owner of its own each time: of two recoveries in one process only one must get the run.
        token = await self._store.acquire_lease(run_id, uuid.uuid4().hex, LEASE_SECONDS)
        if token is not None:
            self._held[run_id] = _Lease(token, on_lost, on_letters, self._store.listen(run_id, on_letters))
            self._arm()
        return token

    async def give_back(self, run_id: str) -> None:
        """The run has ended here, or is left to others."""
        lease = self._held.pop(run_id, None)
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if lease is not None:
            lease.leave()
            await self._store.release_lease(run_id, lease.token)

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._clock.call_later(LEASE_SECONDS / _RENEWALS, self._elapsed)

    def _elapsed(self) -> None:
        """Renew all at once: one that takes long must not let the others lapse."""
        self._timer = None
        self._arm()
        for run_id, lease in self._held.items():
            self._tasks.spawn(self._renew(run_id, lease), name=f"agentflow lease of {run_id}")

    async def _renew(self, run_id: str, lease: _Lease) -> None:
        try:
            letters = await self._store.renew_lease(run_id, lease.token, LEASE_SECONDS)
        except LeaseLostError as error:
            if self._held.get(run_id) is lease:  # else it was given back meanwhile
                del self._held[run_id]
                lease.leave()
                lease.on_lost(error)
        except Exception as error:  # noqa: BLE001  a store of the user's may raise anything, and is asked again
            logger.warning("the lease of run %s could not be renewed: %r", run_id, error)
        else:
            if letters and self._held.get(run_id) is lease:
                lease.on_letters()
