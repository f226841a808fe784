"""Who waits for something in a SQLite file, and the looks at what other processes have done to it.

SQLite tells nobody of a change, so while anybody waits the file is looked at every `POLL` seconds. One number says
whether there was any change at all; only then it is asked what changed for those who wait. Nothing is written here.
"""

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from agentflow.stores.sqlite_file import SqliteFile
from agentflow.stores.sqlite_threads import SqliteThreads
from agentflow.stores.waiting import Waiters

POLL = 0.05  # seconds between two looks
_AT_ONCE = 500  # runs that are asked for in one query

Line: TypeAlias = tuple[str, str]  # a session, as the tables name its user and itself
_Keys: TypeAlias = tuple[Iterable[str], Iterable[str], Iterable[Line]]


class Watch:
    """Those who wait for events of a run, for a request to end it, or for a session, and may be woken for nothing.

    What this process does it wakes them for itself; `arm` is called by who begins to wait.
    """

    def __init__(self, file: SqliteFile, threads: SqliteThreads) -> None:
        self.appends: Waiters[str] = Waiters()
        self.cancels: Waiters[str] = Waiters()
        self.lines: Waiters[Line] = Waiters()
        self._file = file
        self._threads = threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        # What the last look saw; these are the looking thread's.
        self._version: int | None = None
        self._asked: set[str | Line] = set()
        self._seen: dict[str, int] = {}

    def arm(self) -> None:
        """Somebody waits: look, if that is not going on already."""
        loop = asyncio.get_running_loop()
        if (self._loop is not loop or self._timer is None) and not self._closed:
            self._loop = loop
            self._timer = loop.call_later(POLL, self._look)

    def close(self) -> None:
        """Look no more. Whoever still waits is woken, and finds that his store is closed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake(self._waiting())

    def _look(self) -> None:
        if any(self._waiting()):
            self._threads.start(partial(self._changes, *self._waiting())).add_done_callback(self._looked)
        else:
            self._timer = None

    def _looked(self, looked: "asyncio.Future[_Keys]") -> None:
        self._timer = None
        # After an error everybody looks for himself, and is told of it there.
        self._wake(looked.result() if looked.exception() is None else self._waiting())
        if any(self._waiting()):
            self.arm()

    def _waiting(self) -> tuple[Sequence[str], Sequence[str], Sequence[Line]]:
        return self.appends.keys, self.cancels.keys, self.lines.keys

    def _wake(self, keys: _Keys) -> None:
        runs, cancelled, lines = keys
        for run_id in runs:
            self.appends.wake(run_id)
        for run_id in cancelled:
            self.cancels.wake(run_id)
        for line in lines:
            self.lines.wake(line)

    def _changes(self, runs: Sequence[str], cancels: Sequence[str], lines: Sequence[Line]) -> _Keys:
        """Whom to wake of those who wait; in a thread."""
        version = self._file.version()
        asked: set[str | Line] = {*runs, *cancels, *lines}
        # Who was not asked for the last time may have looked before the change that was then already counted.
        if version == self._version and asked <= self._asked:
            return (), (), ()
        lasts, cancelled, free = self._file.read(partial(_look_up, runs=runs, cancels=cancels, lines=lines))
        grown = [run_id for run_id, last in lasts.items() if last != self._seen.get(run_id)]
        self._version, self._asked, self._seen = version, asked, lasts
        return grown, cancelled, free


def _look_up(
    db: sqlite3.Connection, *, runs: Sequence[str], cancels: Sequence[str], lines: Sequence[Line]
) -> tuple[dict[str, int], list[str], list[Line]]:
    """The last event of each of the runs, which are asked to end, and whose sessions are free."""
    lasts = dict(_of_runs(db, "SELECT run_id, last FROM runs WHERE run_id IN", runs))
    cancelled = [
        row[0] for row in _of_runs(db, "SELECT run_id FROM runs WHERE cancel IS NOT NULL AND run_id IN", cancels)
    ]
    held = "SELECT 1 FROM sessions WHERE user = ? AND session_id = ? AND active_run IS NOT NULL"
    return lasts, cancelled, [line for line in lines if db.execute(held, line).fetchone() is None]


def _of_runs(db: sqlite3.Connection, query: str, run_ids: Sequence[str]) -> Iterator[tuple[str, int]]:
    for first in range(0, len(run_ids), _AT_ONCE):
        some = run_ids[first : first + _AT_ONCE]
        yield from db.execute(f"{query} ({', '.join('?' * len(some))})", some)
