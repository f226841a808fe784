"""What the in-memory store keeps beside runs and sessions: outcomes by idempotency key, and facts by user.

Nothing here waits; the contracts are those of `stores.base`.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentflow.stores import refusals
from agentflow.stores.base import MAX_FACTS, Fact, Outcome, OutcomeKey


@dataclass(slots=True)
class _Claim:
    call_id: str
    at: float
    outcome: Outcome | None = None


class Outcomes:
    """At most `limit` keys, each for `ttl` seconds from its claim on; the oldest go first."""

    def __init__(self, limit: int, ttl: float, now: Callable[[], float]) -> None:
        self._limit = limit
        self._ttl = ttl
        self._now = now
        self._claims: OrderedDict[OutcomeKey, _Claim] = OrderedDict()  # oldest first

    def claim(self, key: OutcomeKey, call_id: str) -> Outcome | None:
        """See `OutcomeIndex.claim_outcome`."""
        claim = self._claim(key, call_id)
        if claim.outcome is None and claim.call_id != call_id:
            raise refusals.outcome_pending(key, claim.call_id)
        return claim.outcome

    def keep(self, key: OutcomeKey, call_id: str, outcome: Outcome) -> None:
        """See `OutcomeIndex.keep_outcome`."""
        claim = self._claim(key, call_id)
        if claim.call_id != call_id:
            raise refusals.outcome_pending(key, claim.call_id)
        claim.outcome = claim.outcome or outcome

    def release(self, key: OutcomeKey, call_id: str) -> None:
        """See `OutcomeIndex.release_outcome`."""
        claim = self._claims.get(key)
        if claim is not None and claim.call_id == call_id and claim.outcome is None:
            del self._claims[key]

    def _claim(self, key: OutcomeKey, call_id: str) -> _Claim:
        """The claim on `key`: the one there is, or a new one of this call."""
        oldest = self._now() - self._ttl
        while self._claims and next(iter(self._claims.values())).at <= oldest:
            self._claims.popitem(last=False)
        claim = self._claims.get(key)
        if claim is None:
            if len(self._claims) >= self._limit:
                self._claims.popitem(last=False)
            claim = self._claims[key] = _Claim(call_id, self._now())
        return claim


class Facts:
    """The facts of at most `max_users` users; those whose facts were not touched for longest go first."""

    def __init__(self, max_users: int) -> None:
        self._max_users = max_users
        self._users: OrderedDict[str, dict[str, Fact]] = OrderedDict()

    def put(self, facts: Sequence[Fact]) -> None:
        """See `FactStore.put_facts`."""
        for fact in facts:
            kept = self._users.setdefault(fact.user_id, {})
            kept[fact.id] = fact
            self._users.move_to_end(fact.user_id)
            while len(kept) > MAX_FACTS:
                del kept[next((fact.id for fact in kept.values() if fact.superseded_by is not None), next(iter(kept)))]
        while len(self._users) > self._max_users:
            self._users.popitem(last=False)

    def of(self, user_id: str, *, superseded: bool) -> Sequence[Fact]:
        """See `FactStore.list_facts`."""
        kept = self._users.get(user_id, {}).values()
        return tuple(fact for fact in kept if superseded or fact.superseded_by is None)

    def delete(self, user_id: str, fact_id: str) -> None:
        """See `FactStore.delete_fact`."""
        self._users.get(user_id, {}).pop(fact_id, None)
