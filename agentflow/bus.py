"""EventBus: the only dispatcher of events to observers inside the process.

Synchronous, in one order for all, one event at a time. It keeps nothing: who joins late or must not miss
anything follows the event log. It never awaits: whoever has to, follows the log too.
"""

import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from agentflow.events import AgentEvent

logger = logging.getLogger(__name__)

Tap: TypeAlias = Callable[[AgentEvent], None]
Report: TypeAlias = Callable[[str, str, dict[str, Any]], None]  # code, message, data of a warning

SLOW_SECONDS = 0.05  # a dispatch that takes longer holds up every run of the process
_WATCHED_DISPATCHES = 100  # after a slow dispatch, so many are timed tap by tap
_MAX_FAILURES = 10  # a tap that raises so many times in a row is detached
_QUIET_SECONDS = 60.0  # the same slow tap is not named again before


class _Tap:
    __slots__ = ("active", "call", "failures", "gone", "name", "quiet_until")

    def __init__(self, call: Tap, name: str, gone: Callable[[Exception], None] | None) -> None:
        self.call = call
        self.name = name
        self.gone = gone
        self.active = True
        self.failures = 0
        self.quiet_until = float("-inf")


class EventBus:
    """Observers of all runs that publish here. For use on the loop's thread only.

    An event published from within an observer is dispatched after the current one has reached everybody. An
    observer that raises, whatever it raises, hurts nobody else: it is logged, counted in `failures`, and
    detached after 10 in a row. A dispatch that takes over 50 ms is noticed, the next ones are timed observer by
    observer, and the slow one is named in a `warning(slow_tap)`.
    """

    def __init__(self, *, timer: Callable[[], float] = time.perf_counter, slow_seconds: float = SLOW_SECONDS) -> None:
        self._timer = timer
        self._slow_seconds = slow_seconds
        self._taps: tuple[_Tap, ...] = ()
        self._waiting: deque[tuple[AgentEvent, Report | None]] = deque()
        self._busy = False
        self._watched = 0
        self.failures = 0

    @property
    def events(self) -> Observable[AgentEvent]:
        """The events as a hot Observable: from now on, all runs, in publishing order, never completing."""
        return Observable(self._subscribe)

    def attach(self, tap: Tap, *, name: str | None = None) -> abc.DisposableBase:
        """Call `tap` with every event from now on, until the result is disposed. `async def` is refused.

        A tap attached during a dispatch gets the next event, not the current one; one that is detached gets
        nothing more at once.
        """
        if inspect.iscoroutinefunction(tap) or inspect.iscoroutinefunction(getattr(tap, "__call__", None)):  # noqa: B004
            raise TypeError(
                f"the tap {tap!r} is async: the bus calls taps and does not await them; use a plain function, "
                "or follow a run with `async for event in agent.follow(run_id)`"
            )
        return self._attach(_Tap(tap, name or _name_of(tap), None))

    def publish(self, events: Iterable[AgentEvent], report: Report | None = None) -> None:
        """Dispatch accepted events. For the writer of a run only; `report` takes warnings about taps."""
        if self._busy:
            self._waiting.extend((event, report) for event in events)
            return
        self._busy = True
        try:
            for event in events:
                self._dispatch(event, report)
            while self._waiting:
                self._dispatch(*self._waiting.popleft())
        finally:
            self._busy = False

    def _attach(self, tap: _Tap) -> abc.DisposableBase:
        self._taps = (*self._taps, tap)
        return Disposable(lambda: self._detach(tap))

    def _detach(self, tap: _Tap) -> None:
        tap.active = False
        self._taps = tuple(other for other in self._taps if other is not tap)

    def _subscribe(
        self, observer: abc.ObserverBase[AgentEvent], _: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        return self._attach(_Tap(observer.on_next, _name_of_observer(observer), observer.on_error))

    def _dispatch(self, event: AgentEvent, report: Report | None) -> None:
        if self._watched:
            self._watched -= 1
            self._dispatch_watched(event, report)
            return
        began = self._timer()
        for tap in self._taps:
            if tap.active:
                try:
                    tap.call(event)
                    tap.failures = 0
                except BaseException as error:  # noqa: BLE001  isolation is this loop's purpose
                    self._failed(tap, error)
        if self._timer() - began > self._slow_seconds:
            self._watched = _WATCHED_DISPATCHES

    def _dispatch_watched(self, event: AgentEvent, report: Report | None) -> None:
        for tap in self._taps:
            if not tap.active:
                continue
            began = self._timer()
            try:
                tap.call(event)
                tap.failures = 0
            except BaseException as error:  # noqa: BLE001  isolation is this loop's purpose
                self._failed(tap, error)
            now = self._timer()
            if now - began > self._slow_seconds and now >= tap.quiet_until:
                tap.quiet_until = now + _QUIET_SECONDS
                self._slow(tap, now - began, event, report)

    def _failed(self, tap: _Tap, error: BaseException) -> None:
        self.failures += 1
        tap.failures += 1
        logger.error("the tap %s raised; the others got the event all the same", tap.name, exc_info=error)
        if tap.failures < _MAX_FAILURES:
            return
        logger.error("the tap %s raised %d times in a row and is detached", tap.name, tap.failures)
        self._detach(tap)
        if tap.gone is not None:
            try:
                tap.gone(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            except Exception:  # it is gone already, and hurts nobody else
                logger.exception("the tap %s raised in on_error", tap.name)

    def _slow(self, tap: _Tap, seconds: float, event: AgentEvent, report: Report | None) -> None:
        milliseconds = round(seconds * 1000, 1)
        message = f"the tap {tap.name} took {milliseconds} ms for one {event.type} event and held up every run"
        logger.warning(message)
        if report is not None:
            report("slow_tap", message, {"tap": tap.name, "event": event.type.value, "milliseconds": milliseconds})


def _name_of(tap: Callable[..., Any]) -> str:
    module, name = getattr(tap, "__module__", None), getattr(tap, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(tap)


def _name_of_observer(observer: Any) -> str:
    """The user's function behind an Rx observer, as far as it can be seen."""
    inner = getattr(observer, "_on_next", None)
    return _name_of(inner) if callable(inner) else repr(observer)
