"""A handler for the standard library's logging that holds nobody up, whatever becomes of what it writes to.

What a line looks like is its formatter's business.
"""

import copy
import logging
import queue
import threading
from typing import Final, TextIO

CAPACITY: Final = 4096  # records that may wait to be written
MAX_RECORD: Final = 16 * 1024  # characters of a record's text that are kept
# Seconds in which records gather once all are written: to wake a thread for each costs more than to write it.
_GATHERING: Final = 0.05
_PATIENCE: Final = 2.0  # seconds in which what waits is still written at the end


class Sink(logging.Handler):
    """Has a thread write records to `stream`, a line each, in the order in which they came.

    A pipe that nobody reads fills the queue; what comes then is dropped and counted in `dropped`, and a line says how
    many there were once there is room. What cannot be formatted or written is counted in `failed` and not tried again.
    """

    def __init__(self, stream: TextIO, formatter: logging.Formatter, *, capacity: int = CAPACITY) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._stream = stream
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(capacity)
        self._told = 0
        self.dropped = 0
        self.failed = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write, name="agentflow-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record. Its text is made now, since what it is made from may change."""
        try:
            if not isinstance(record.msg, dict):  # else it is structlog's, and nobody else has it
                record = copy.copy(record)
                record.msg, record.args = record.getMessage()[:MAX_RECORD], None
            self._records.put_nowait(record)
        except queue.Full:
            self.dropped += 1
        except Exception:  # noqa: BLE001  a faulty record is not to fail the code that logs
            self.failed += 1

    def close(self) -> None:
        """Write what waits, for up to 2 s. Harmless a second time."""
        super().close()
        self._closing.set()
        try:
            self._records.put_nowait(None)
        except queue.Full:  # then nothing is being read, and the thread ends with the process
            return
        self._thread.join(_PATIENCE)

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            self._line(record)
            if self.dropped > self._told:
                missing, self._told = self.dropped - self._told, self.dropped
                text = f"{missing} lines were dropped: the log was not read"
                self._line(logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None))
            if self._records.empty():
                self._flush()
                self._closing.wait(_GATHERING)
        self._flush()

    def _line(self, record: logging.LogRecord) -> None:
        try:
            self._stream.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001  there is no other place to say it: see `failed`
            self.failed += 1

    def _flush(self) -> None:
        try:
            self._stream.flush()
        except Exception:  # noqa: BLE001  as above
            self.failed += 1
