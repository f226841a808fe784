"""The firehose: the events of all runs of this process, for dashboards, at each reader's own pace.

Deltas are not among them, of models and tools alike: who wants a run's text follows the run. The last events are kept
once for all readers, within bounds; a reader that has fallen behind them is told how many it has missed.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence

from agentflow.events import AgentEvent, DeltaEvent, GapEvent, ToolDeltaEvent, encode
from agentflow.transports.encoding import MAX_WRITE, frame

MAX_EVENTS = 4096
MAX_BYTES = 8 * 1024 * 1024
_QUIET = (DeltaEvent, ToolDeltaEvent)


class Firehose:
    """The last events, as frames. Those that come while nobody reads are counted and not kept.

    A position is the number of an event of this process, from 1, with the process's own name before it.
    """

    def __init__(self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self.epoch = secrets.token_hex(8)
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._number = 0  # of the last event
        self._more = asyncio.Event()
        self.readers = 0
        self.gaps = 0  # that readers were told of
        self.missed = 0  # events that readers were told they have missed, in all

    @property
    def position(self) -> str:
        """Where a reader that wants what comes from now on begins."""
        return f"{self.epoch}:{self._number}"

    def see(self, event: AgentEvent) -> None:
        """An event of the bus."""
        if isinstance(event, _QUIET):
            return
        self._number += 1
        if not self.readers:
            self._frames.clear()
            self._bytes = 0
            return
        data = frame(encode(event), self.position)
        self._frames.append(data)
        self._bytes += len(data)
        while len(self._frames) > self._max_events or self._bytes > self._max_bytes:
            self._bytes -= len(self._frames.popleft())
        self._more.set()

    def after(self, epoch: str, number: int) -> int:
        """The number to read after for a position; that of another process's events is unknown, and is before all."""
        return min(number, self._number) if epoch == self.epoch else 0

    async def page(self, after: int) -> tuple[Sequence[bytes], int]:
        """The frames after a number, up to 256 KiB of them, and the number of the last; waits for one.

        Where events are missing a frame with a `gap` comes first. Cancelling loses nothing.
        """
        while self._number <= after:
            self._more.clear()
            await self._more.wait()
        first = self._number - len(self._frames) + 1  # the number of the oldest that is kept
        page = [self._gap(after, first)] if after < first - 1 else []
        after = max(after, first - 1)
        size = 0
        for position in range(after - first + 1, len(self._frames)):
            data = self._frames[position]
            size += len(data)
            if page and size > MAX_WRITE:
                break
            page.append(data)
            after += 1
        return page, after

    def _gap(self, after: int, first: int) -> bytes:
        missed = first - 1 - after
        self.gaps += 1
        self.missed += missed
        gap = GapEvent(
            run_id="", chain_id="", session_id="", path=(), trace_id="", after_seq=after, next_seq=first, missed=missed
        )
        return frame(encode(gap))
