"""Who reads runs from this process: how far behind they are, and what all of them were sent.

Numbers only; it hands nothing on and holds nobody back.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from agentflow.event_log import Reader
from agentflow.streams import Clock, LoopClock

SLOW = 64  # events that a reader has not taken yet, from which on operators are told of it
_MOST = 20  # slow readers that are told


class Readings:
    """The readers that there are, each until it is dropped, and counts since the process began.

    `last_seq` gives the number of a run's last event, 0 for a run that is not worked on here. `bytes` were sent over
    streams and sockets; `resumes` are readers that went on after an event; `dropped` are clients that were cut off,
    since they took nothing. May be read on any thread.
    """

    def __init__(self, last_seq: Callable[[str], int], clock: Clock | None = None) -> None:
        self._last_seq = last_seq
        self._clock = clock if clock is not None else LoopClock()
        self._readers: WeakKeyDictionary[Reader, str] = WeakKeyDictionary()
        self._slow: WeakKeyDictionary[Reader, float] = WeakKeyDictionary()  # since when, by the clock
        self.bytes = 0
        self.resumes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, reader: Reader, run_id: str) -> None:
        """One more, of this run."""
        self._readers[reader] = run_id
        self.resumes += reader.after > 0

    def lag(self) -> int:
        """How many events the reader that is furthest behind has not taken yet."""
        readers = tuple(self._readers.items())
        return max((0, *(self._last_seq(run_id) - reader.after for reader, run_id in readers)))

    def slow(self) -> list[dict[str, Any]]:
        """The readers that are `SLOW` events behind or more, the slowest first: run, events, seconds.

        The seconds count from the look that found it slow, so they are for who looks every few seconds.
        """
        now = self._clock.monotonic()
        told: list[dict[str, Any]] = []
        for reader, run_id in tuple(self._readers.items()):
            events = self._last_seq(run_id) - reader.after
            if events < SLOW:
                self._slow.pop(reader, None)
                continue
            since = self._slow.setdefault(reader, now)
            told.append({"run_id": run_id, "events": events, "seconds": round(now - since, 3)})
        return sorted(told, key=lambda one: one["seconds"], reverse=True)[:_MOST]
