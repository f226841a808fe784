"""Rx operators of agentflow: micro-batches of deltas, and a typed filter.

`MicroBatch` is the core that a chain calls directly, since an Rx stage per token would cost more than the rest
of its way; `micro_batch` is the same as an operator for anybody's stream of events.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from agentflow.events import AgentEvent, DeltaEvent, Event
from agentflow.streams import Clock, LoopClock, Timer

WINDOW_SECONDS = 0.2
MAX_BATCH_BYTES = 512 * 1024

_FEW_CHAINS = 16  # open windows among which silent ones are not worth looking for

Key = TypeVar("Key")
EventT = TypeVar("EventT", bound=Event)


class MicroBatch(Generic[Key]):
    """Joins texts by time and size: a window of `window` seconds or `max_bytes` of UTF-8, whichever is first.

    When idle, the first text is emitted at once and opens a window; what follows in the window is joined and
    emitted when it closes, which opens the next; a window in which nothing came ends in idleness, without a
    timer. Texts of different keys are never joined: with the key's change the old text is emitted at once and
    the new one waits for the window. `emit(key, text, count)` gets whole texts only, so no code point is cut, and
    is called in the caller's or the timer's call; if it raises, the batch goes on with the next text.
    """

    __slots__ = ("_bytes", "_clock", "_count", "_emit", "_key", "_max_bytes", "_parts", "_timer", "_window")

    def __init__(
        self,
        emit: Callable[[Key, str, int], None],
        *,
        clock: Clock,
        window: float = WINDOW_SECONDS,
        max_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._window = window
        self._max_bytes = max_bytes
        self._timer: Timer | None = None
        self._key: Key | None = None
        self._parts: list[str] = []
        self._count = 0
        self._bytes = 0

    @property
    def idle(self) -> bool:
        """Whether no window is open: then nothing is held and no timer runs."""
        return self._timer is None

    def push(self, key: Key, text: str, count: int = 1) -> None:
        """Add `text`, which stands for `count` of the source's pieces."""
        if self._timer is None:
            self.open()
            self._emit(key, text, count)
            return
        if key != self._key:
            self.flush()
            self._key = key
        self._parts.append(text)
        self._count += count
        self._bytes += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if self._bytes >= self._max_bytes:
            self.flush()

    def open(self) -> None:
        """Begin a window, unless one is open: the next text waits for its end then, as if text had come just now."""
        if self._timer is None:
            self._timer = self._clock.call_later(self._window, self._elapsed)

    def flush(self) -> None:
        """Emit what is held now; the window goes on."""
        if not self._parts:
            return
        key, text, count = self._key, "".join(self._parts), self._count
        self._parts, self._count, self._bytes = [], 0, 0
        self._emit(key, text, count)  # type: ignore[arg-type]  # a key was set with the first part

    def close(self) -> None:
        """Emit what is held and end the window: what a non-delta event does before it goes on its way."""
        self.discard_timer()
        self.flush()

    def discard_timer(self) -> None:
        """End the window without emitting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _elapsed(self) -> None:
        # The next window is open before anything is emitted, so that a raising consumer cannot stop it.
        self._timer = self._clock.call_later(self._window, self._elapsed) if self._parts else None
        self.flush()


class _ChainBatch:
    """The open window of one chain in a stream of events."""

    def __init__(self, forward: Callable[[AgentEvent], None], clock: Clock, window: float, max_bytes: int) -> None:
        self._forward = forward
        self._first: DeltaEvent | None = None
        self.batch: MicroBatch[tuple[int, int, str]] = MicroBatch(
            self._emit, clock=clock, window=window, max_bytes=max_bytes
        )

    def push(self, event: DeltaEvent) -> None:
        key = (event.iteration, event.attempt, event.channel)
        first = self._first
        if first is not None and key != (first.iteration, first.attempt, first.channel):
            self.batch.flush()
        if self._first is None:
            self._first = event
        self.batch.push(key, event.text, event.count)

    def _emit(self, _: tuple[int, int, str], text: str, count: int) -> None:
        first, self._first = self._first, None
        if first is None:
            return
        same = first.text == text and first.count == count
        self._forward(first if same else msgspec.structs.replace(first, text=text, count=count))


class _ChainBatches:
    """The operator at work: one subscription, with the open windows of its chains by chain id."""

    def __init__(self, observer: abc.ObserverBase[AgentEvent], clock: Clock, window: float, max_bytes: int) -> None:
        self._observer = observer
        self._settings = (clock, window, max_bytes)
        self._open: dict[str, _ChainBatch] = {}
        self._room = _FEW_CHAINS

    def on_next(self, event: AgentEvent) -> None:
        chain = self._open.get(event.chain_id)
        if isinstance(event, DeltaEvent):
            if chain is None:
                self._make_room()
                chain = self._open[event.chain_id] = _ChainBatch(self._observer.on_next, *self._settings)
            chain.push(event)
            return
        if chain is not None:
            del self._open[event.chain_id]
            chain.batch.close()
        self._observer.on_next(event)

    def on_error(self, error: Exception) -> None:
        self._close()
        self._observer.on_error(error)

    def on_completed(self) -> None:
        self._close()
        self._observer.on_completed()

    def drop(self) -> None:
        for chain in self._open.values():
            chain.batch.discard_timer()
        self._open.clear()

    def _close(self) -> None:
        chains, self._open = self._open, {}
        for chain in chains.values():
            chain.batch.close()

    def _make_room(self) -> None:
        """Chains that fell silent go, so that a long stream does not keep every chain it ever saw.

        Looked for only when there are twice as many as last time: each chain would pay for all others else.
        """
        if len(self._open) < self._room:
            return
        self._open = {chain_id: chain for chain_id, chain in self._open.items() if not chain.batch.idle}
        self._room = max(_FEW_CHAINS, 2 * len(self._open))


def micro_batch(
    *, window: float = WINDOW_SECONDS, max_bytes: int = MAX_BATCH_BYTES, clock: Clock | None = None
) -> Callable[[Observable[AgentEvent]], Observable[AgentEvent]]:
    """Join the deltas of each chain; see `MicroBatch` for the window.

    A joined delta is the first of its deltas with the text and the counts of all; it never mixes chains, rounds,
    attempts or channels. Any other event emits what its chain holds, then passes, in the same call. Errors and
    completion emit everything first; disposing drops what is held. `clock` is the running loop's by default.
    """

    def operator(source: Observable[AgentEvent]) -> Observable[AgentEvent]:
        def subscribe(
            observer: abc.ObserverBase[AgentEvent], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            batches = _ChainBatches(observer, clock or LoopClock(), window, max_bytes)
            subscription = source.subscribe(
                batches.on_next, batches.on_error, batches.on_completed, scheduler=scheduler
            )
            return CompositeDisposable(subscription, Disposable(batches.drop))

        return Observable(subscribe)

    return operator


def of_type(cls: type[EventT]) -> Callable[[Observable[AgentEvent]], Observable[EventT]]:
    """Only the events of one class, typed as such: `agent.events.pipe(of_type(ToolStartEvent))`."""

    def operator(source: Observable[AgentEvent]) -> Observable[EventT]:
        def subscribe(
            observer: abc.ObserverBase[EventT], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(event: AgentEvent) -> None:
                if isinstance(event, cls):
                    observer.on_next(event)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator
