"""How late the event loop comes to what is due, and what holds it up.

It only looks: nothing is stopped. One timer beats while something runs; a thread sees that a beat is missing, and looks
at what the loop's thread is doing just then.
"""

import asyncio
import logging
import math
import os
import sys
import threading
import time
from asyncio.tasks import current_task
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import agentflow
from agentflow.events import AgentEvent
from agentflow.streams import Clock, LoopClock, Timer

logger = logging.getLogger(__name__)

INTERVAL: Final = 0.1  # seconds between beats
THRESHOLD: Final = 0.25  # seconds of lag over which the runs in flight are told
_MAX_FRAMES: Final = 8
_QUIET_SECONDS: Final = 10.0  # after a report, so that a loop that is behind is not given more to do
# Calls from here are how the loop comes to what holds it.
_OURS: Final = tuple(str(Path(module).parent) + os.sep for module in (asyncio.__file__, agentflow.__file__))


@dataclass(frozen=True, slots=True)
class Held:
    """What the loop's thread did while it came to nothing else: the task, and its calls, the innermost last."""

    task: str
    stack: tuple[str, ...]


class LoopWatch:
    """Measures a loop while `is_busy` says that something runs there; `see` wakes it, from a bus.

    `record` is told the lag of every beat in seconds, `report` one over the threshold, at most every 10 s, as the
    message and the data of a warning. That names the function that held the loop and no more: runs are their users' to
    read; task and stack are logged. An idle loop has no timer, and the thread sleeps. `now` is any monotonic clock,
    read on both threads. Made and closed on the loop's thread.
    """

    def __init__(
        self,
        is_busy: Callable[[], bool],
        record: Callable[[float], None],
        report: Callable[[str, dict[str, Any]], None],
        *,
        clock: Clock | None = None,
        now: Callable[[], float] = time.monotonic,
        interval: float = INTERVAL,
        threshold: float = THRESHOLD,
    ) -> None:
        self._is_busy = is_busy
        self._record = record
        self._report = report
        self._clock = clock if clock is not None else LoopClock()
        self._now = now
        self._interval = interval
        self._threshold = threshold
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._timer: Timer | None = None
        self._due = 0.0
        self._held: Held | None = None
        self._quiet_until = -math.inf
        self._beating = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def see(self, _: AgentEvent) -> None:
        """Something happens, so that something runs."""
        if self._timer is None and not self._closed.is_set():
            self._beat_later()
            self._beating.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="agentflow-loop-watch", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Measure no more, and wait for the thread, which has nothing to wait for itself."""
        self._closed.set()
        self._beating.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._thread is not None:
            self._thread.join()

    # -- on the loop's thread ------------------------------------------------------------------------------

    def _beat_later(self) -> None:
        self._due = self._now() + self._interval
        self._timer = self._clock.call_later(self._interval, self._beat)

    def _beat(self) -> None:
        self._timer = None
        now = self._now()
        lag = max(0.0, now - self._due)
        held, self._held = self._held, None
        self._record(lag)
        if lag > self._threshold and now >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            self._tell(round(lag * 1000, 1), held)
        if self._is_busy():
            self._beat_later()
        else:
            self._beating.clear()

    def _tell(self, milliseconds: float, held: Held | None) -> None:
        message = f"the event loop came {milliseconds} ms late to what was due"
        if held is None or not held.stack:
            logger.warning("%s", message)
            self._report(message, {"milliseconds": milliseconds})
            return
        logger.warning("%s; in the task %r it did: %s", message, held.task, ", ".join(held.stack))
        function = held.stack[0].partition(" ")[0].rpartition("<locals>.")[2]
        data = {"milliseconds": milliseconds, "held_by": function}
        self._report(f"{message}: {function} computes or blocks on it", data)

    # -- on the thread that watches ------------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            self._beating.wait()
            if self._closed.wait(self._interval):
                return
            self.look()

    def look(self) -> None:
        """Keep what the loop's thread is doing, once, if a beat is missing."""
        if self._timer is None or self._held is not None or self._now() - self._due <= self._threshold:
            return
        frame = sys._current_frames().get(self._loop_thread)
        task = current_task(self._loop)
        self._held = Held(task.get_name() if task is not None else "", _stack(frame))


def _stack(frame: FrameType | None) -> tuple[str, ...]:
    """The calls below the loop's and the framework's own, else the innermost, each as "function (file:line)"."""
    calls: list[tuple[CodeType, int]] = []
    while frame is not None:
        calls.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    theirs = next((i for i, (code, _) in enumerate(calls) if code.co_filename.startswith(_OURS)), len(calls))
    shown = calls[:theirs] if theirs else calls[:_MAX_FRAMES]
    return tuple(f"{code.co_qualname} ({code.co_filename}:{line})" for code, line in reversed(shown[-_MAX_FRAMES:]))
