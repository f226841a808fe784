"""Who reads runs from this process: how far behind they are, and what all of them were sent.

Numbers only; it hands nothing on and holds nobody back.
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

from agentflow.event_log import Reader


class Readings:
    """The readers that there are, each until it is dropped, and counts since the process began.

    `last_seq` gives the number of a run's last event, 0 for a run that is not worked on here. `bytes` were sent over
    streams and sockets; `resumes` are readers that went on after an event; `dropped` are clients that were cut off,
    since they took nothing. May be read on any thread.
    """

    def __init__(self, last_seq: Callable[[str], int]) -> None:
        self._last_seq = last_seq
        self._readers: WeakKeyDictionary[Reader, str] = WeakKeyDictionary()
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
