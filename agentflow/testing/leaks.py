"""LeakCheck: what a block of code leaves behind – tasks, threads, sockets and files, and complaints of asyncio.

It only looks; it ends and closes nothing. File descriptors are seen where `/proc` shows them (Linux).
"""

import asyncio
import gc
import logging
import os
import sys
import threading
import warnings
from types import TracebackType
from typing import Self, TextIO

_PATIENCE = 2.0  # real seconds a thread that was told to end gets for it
_TURNS = 50  # of the loop, in which closed transports and cancelled tasks come to their end
_EXECUTOR_THREADS = "asyncio_"  # the loop's own executor, which ends with the loop
_COMPLAINTS = ("never awaited", "nclosed ", "never retrieved", "was destroyed but it is pending")


class LeakError(AssertionError):
    """Something was left behind; the message lists it."""


class _Complaints(logging.Handler):
    """Hears what Python and asyncio complain of: in log lines, in warnings, and in errors nobody could be told of."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._next_warning = warnings.showwarning
        self._next_unraisable = sys.unraisablehook

    def listen(self) -> None:
        """Begin. Whoever listened before still hears everything."""
        logging.getLogger("asyncio").addHandler(self)
        self._next_warning, warnings.showwarning = warnings.showwarning, self._warn
        self._next_unraisable, sys.unraisablehook = sys.unraisablehook, self._unraisable

    def stop(self) -> None:
        """End, and give back what `listen` took."""
        logging.getLogger("asyncio").removeHandler(self)
        warnings.showwarning = self._next_warning
        sys.unraisablehook = self._next_unraisable

    def note(self, message: object) -> None:
        """Keep the message if it is a complaint about something left behind."""
        if any(complaint in str(message) for complaint in _COMPLAINTS):
            self.lines.append(str(message))

    def emit(self, record: logging.LogRecord) -> None:
        self.note(record.getMessage())

    def _warn(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        self.note(message)
        self._next_warning(message, category, filename, lineno, file, line)

    def _unraisable(self, unraisable: "sys.UnraisableHookArgs") -> None:
        self.note(unraisable.exc_value)
        self._next_unraisable(unraisable)


class LeakCheck:
    """`async with LeakCheck(): …` raises `LeakError` if the block leaves more behind than it found.

    Counted are tasks of the running loop, threads (daemon threads too, unless `threads` is False; the loop's own
    executor never), open sockets and other file descriptors, and complaints such as "never awaited", "Unclosed" or
    "never retrieved". What is on its way to its end is waited for: some turns of the loop, 2 s for threads. An
    exception of the block itself goes first.
    """

    def __init__(self, *, threads: bool = True) -> None:
        self._check_threads = threads
        self._complaints = _Complaints()

    async def __aenter__(self) -> Self:
        self._tasks = asyncio.all_tasks()
        self._threads = set(threading.enumerate())
        self._descriptors = _descriptors()
        self._complaints.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._verify()
        finally:
            self._complaints.stop()

    async def _verify(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
            if not self._left_in_loop():
                break
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gc.collect()
        for warning in caught:
            self._complaints.note(warning.message)
        left = [*self._left_in_loop(), *self._left_threads(), *self._complaints.lines]
        if left:
            raise LeakError("left behind:\n" + "\n".join(f"  {line}" for line in left))

    def _left_in_loop(self) -> list[str]:
        tasks = [f"task {task!r}" for task in asyncio.all_tasks() - self._tasks - {asyncio.current_task()}]
        descriptors = sorted(_descriptors().items() - self._descriptors.items())
        return tasks + [f"file descriptor {number}: {target}" for number, target in descriptors]

    def _left_threads(self) -> list[str]:
        if not self._check_threads:
            return []
        for thread in self._new_threads():
            thread.join(_PATIENCE)
        return [f"thread {thread!r}" for thread in self._new_threads()]

    def _new_threads(self) -> list[threading.Thread]:
        started = set(threading.enumerate()) - self._threads
        return [thread for thread in started if not thread.name.startswith(_EXECUTOR_THREADS)]


def _descriptors() -> dict[int, str]:
    """What each open file descriptor stands for."""
    found = {}
    try:
        numbers = os.listdir("/proc/self/fd")
    except FileNotFoundError:
        return {}
    for number in numbers:
        try:
            found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the one that listed the directory
            continue
    return found
