"""FailingLog: a store of which one call fails. Everything else is the store's it wraps."""

import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from agentflow.errors import StoreError
from agentflow.stores.base import EventLog, FactStore, OutcomeIndex, RunStore, SessionStore, Store

P = ParamSpec("P")
T = TypeVar("T")


def _passed_on(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate["FailingLog", P], Coroutine[Any, Any, T]]:
    """The method of a protocol, done by the wrapped store unless it is the one that fails."""

    @functools.wraps(method)
    async def call(self: "FailingLog", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast("T", await self._pass_on(method.__name__, *args, **kwargs))

    return call


class FailingLog:
    """Any `Store`, with one call that fails.

    The `fail_at`-th call (from 1, over all runs) of the method `of`, or of any for `of=None`, raises `error`, once.
    With `applied` it was done before it raised, as when the reply of a server is lost. `calls` counts by method, so
    that a test can go through every n.
    """

    def __init__(
        self,
        store: Store,
        *,
        fail_at: int,
        of: str | None = "append",
        error: Exception | None = None,
        applied: bool = False,
    ) -> None:
        self.calls: Counter[str] = Counter()
        self._store = store
        self._fail_at = fail_at
        self._of = of
        self._error = error if error is not None else StoreError(f"{of or 'call'} {fail_at} failed, as the test asked")
        self._applied = applied

    @property
    def appends(self) -> int:
        """How often `append` was called."""
        return self.calls["append"]

    append = _passed_on(EventLog.append)
    read = _passed_on(EventLog.read)
    wait = _passed_on(EventLog.wait)
    last = _passed_on(EventLog.last)
    find_run = _passed_on(RunStore.find_run)
    list_runs = _passed_on(RunStore.list_runs)
    acquire_lease = _passed_on(RunStore.acquire_lease)
    renew_lease = _passed_on(RunStore.renew_lease)
    release_lease = _passed_on(RunStore.release_lease)
    send_letter = _passed_on(RunStore.send_letter)
    list_letters = _passed_on(RunStore.list_letters)
    delete_letters = _passed_on(RunStore.delete_letters)
    mark_read = _passed_on(RunStore.mark_read)
    read_for = _passed_on(RunStore.read_for)
    open_session = _passed_on(SessionStore.open_session)
    close_session = _passed_on(SessionStore.close_session)
    read_turns = _passed_on(SessionStore.read_turns)
    list_sessions = _passed_on(SessionStore.list_sessions)
    find_session = _passed_on(SessionStore.find_session)
    delete_session = _passed_on(SessionStore.delete_session)
    keep_summary = _passed_on(SessionStore.keep_summary)
    claim_outcome = _passed_on(OutcomeIndex.claim_outcome)
    keep_outcome = _passed_on(OutcomeIndex.keep_outcome)
    release_outcome = _passed_on(OutcomeIndex.release_outcome)
    put_facts = _passed_on(FactStore.put_facts)
    list_facts = _passed_on(FactStore.list_facts)
    delete_fact = _passed_on(FactStore.delete_fact)
    aclose = _passed_on(Store.aclose)

    def listen(self, run_id: str, heard: Callable[[], None]) -> Callable[[], None]:
        """See `RunStore.listen`: it does not fail, since it calls nobody."""
        return self._store.listen(run_id, heard)

    async def _pass_on(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.calls[name] += 1
        number = self.calls.total() if self._of is None else self.calls[name]
        fails = self._of in (None, name) and number == self._fail_at
        result = None
        if not fails or self._applied:
            result = await getattr(self._store, name)(*args, **kwargs)
        if fails:
            raise self._error
        return result
