"""Who waits for something in a SQLite file or listens, and the looks at what other processes have done to it.

SQLite tells nobody of a change, so while anybody waits the file is looked at every `POLL` seconds, and every
`LISTENING` while somebody only listens. One number says whether there was any change at all; only then it is asked what
changed for them. Nothing is written here.
"""

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

from agentflow.stores.sqlite_file import SqliteFile
from agentflow.stores.sqlite_threads import SqliteThreads
from agentflow.stores.waiting import Listeners, Waiters

POLL = 0.05  # seconds between two looks
LISTENING = 0.2
_AT_ONCE = 500  # runs that are asked for in one query

Line: TypeAlias = tuple[str, str]  # a session, as the tables name its user and itself
_Keys: TypeAlias = tuple[Sequence[str], Sequence[Line], Sequence[str]]


class Watch:
    """Those who wait for events of a run or for a session, and who listens for letters; any may be woken for nothing.

    What this process does it wakes them for itself; `arm` is called by who begins to wait or to listen.
    """

    def __init__(self, file: SqliteFile, threads: SqliteThreads) -> None:
        self.appends: Waiters[str] = Waiters()
        self.inboxes: Listeners[str] = Listeners()
        self.lines: Waiters[Line] = Waiters()
        self._file = file
        self._threads = threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        # What the last look saw; these are the looking thread's.
        self._version: int | None = None
        self._asked: set[str | Line] = set()
        self._seen: Mapping[str, int] = {}
        self._letters: Mapping[str, int] = {}

    def arm(self) -> None:
        """Somebody waits or listens: look soon enough, if that is not going on already."""
        loop = asyncio.get_running_loop()
        delay = POLL if any(self._waiting()) else LISTENING
        if self._timer is not None and self._loop is loop:
            if self._timer.when() <= loop.time() + delay:  # also while a look is under way
                return
            self._timer.cancel()
        if not self._closed:
            self._loop = loop
            self._timer = loop.call_later(delay, self._look)

    def close(self) -> None:
        """Look no more. Whoever still waits is woken, and finds that his store is closed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake(self._waiting())

    def _look(self) -> None:
        if any(self._wanted()):
            self._threads.start(partial(self._changes, *self._wanted())).add_done_callback(self._looked)
        else:
            self._timer = None

    def _looked(self, looked: "asyncio.Future[_Keys]") -> None:
        self._timer = None
        # After an error everybody who waits looks for himself, and is told of it there. Who listens is not told: he
        # would only hear it again and again, and looks by himself now and then.
        self._wake(looked.result() if looked.exception() is None else self._waiting())
        if any(self._wanted()):
            self.arm()

    def _waiting(self) -> _Keys:
        return self.appends.keys, self.lines.keys, ()

    def _wanted(self) -> _Keys:
        return self.appends.keys, self.lines.keys, self.inboxes.keys

    def _wake(self, keys: _Keys) -> None:
        runs, lines, inboxes = keys
        for run_id in runs:
            self.appends.wake(run_id)
        for line in lines:
            self.lines.wake(line)
        for run_id in inboxes:
            self.inboxes.wake(run_id)

    def _changes(self, runs: Sequence[str], lines: Sequence[Line], inboxes: Sequence[str]) -> _Keys:
        """Whom to wake of those who wait and listen; in a thread."""
        version = self._file.version()
        asked: set[str | Line] = {*runs, *lines}
        # Who was not asked for the last time may have looked before the change that was then already counted. Who
        # listens has begun before the letters that he must hear of.
        if version == self._version and asked <= self._asked:
            return (), (), ()
        lasts, free, letters = self._file.read(partial(_look_up, runs=runs, lines=lines, letters=bool(inboxes)))
        grown, sent = _changed(lasts, self._seen), _changed(letters, self._letters)
        self._version, self._asked, self._seen, self._letters = version, asked, lasts, letters
        return grown, free, sent


def _changed(now: Mapping[str, int], before: Mapping[str, int]) -> list[str]:
    return [run_id for run_id, number in now.items() if number != before.get(run_id)]


def _look_up(
    db: sqlite3.Connection, *, runs: Sequence[str], lines: Sequence[Line], letters: bool
) -> tuple[dict[str, int], list[Line], dict[str, int]]:
    """The last event of each of the runs, which sessions are free, and the last letters of all runs that have any."""
    lasts: dict[str, int] = {}
    of_runs = "SELECT run_id, last FROM runs WHERE run_id IN"
    for first in range(0, len(runs), _AT_ONCE):
        some = runs[first : first + _AT_ONCE]
        lasts |= dict(db.execute(f"{of_runs} ({', '.join('?' * len(some))})", some))
    held = "SELECT 1 FROM sessions WHERE user = ? AND session_id = ? AND active_run IS NOT NULL"
    free = [line for line in lines if db.execute(held, line).fetchone() is None]
    sent = "SELECT run_id, max(inbox.number) FROM inbox JOIN runs ON runs.number = inbox.run GROUP BY inbox.run"
    return lasts, free, dict(db.execute(sent)) if letters else {}
