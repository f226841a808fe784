"""What a token and an event cost inside: ns of CPU, and the ratio to a plain loop over callbacks in the same run.

    python benchmarks/primitives.py [--events 200000] [--repeats 7]

Cases are interleaved and the best of the repeats counts; the process's CPU time is the measure.
"""

import argparse
import asyncio
import time
from collections.abc import Callable

from agentflow.bus import EventBus
from agentflow.events import DeltaEvent
from agentflow.operators import MicroBatch
from agentflow.streams import LoopClock

HEADER = {"run_id": "r", "chain_id": "r", "session_id": "s", "path": ("agent",), "trace_id": "0" * 32}


class Counter:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, _: object) -> None:
        self.n += 1


def plain_loop(taps: int, events: int) -> None:
    """A list of callbacks, called for each event: the least a dispatch can be."""
    calls = [Counter() for _ in range(taps)]
    event = DeltaEvent(text="word", **HEADER)
    for _ in range(events):
        for call in calls:
            call(event)
    assert all(call.n == events for call in calls)


def bus(taps: int, events: int) -> None:
    """The same through the bus: isolation, one order, timing of slow taps. One event a publish."""
    hub = EventBus()
    calls = [Counter() for _ in range(taps)]
    for call in calls:
        hub.attach(call)
    batch = [DeltaEvent(text="word", **HEADER)]
    for _ in range(events):
        hub.publish(batch)
    assert all(call.n == events for call in calls)


def micro_batch(_: int, events: int) -> None:
    """Tokens into an open window, emitted by size."""
    emitted: list[int] = []
    batch: MicroBatch[tuple[int, int, str]] = MicroBatch(lambda _, __, count: emitted.append(count), clock=LoopClock())
    for _i in range(events):
        batch.push((1, 1, "answer"), "word ")
    batch.close()
    assert sum(emitted) == events


def measure(case: Callable[[int, int], None], taps: int, events: int) -> float:
    async def main() -> float:
        began = time.process_time()
        case(taps, events)
        return time.process_time() - began

    return asyncio.run(main()) / events * 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    cases = [("plain loop", plain_loop, taps) for taps in (1, 10, 100)]
    cases += [("bus", bus, taps) for taps in (1, 10, 100)]
    cases += [("micro_batch, per token", micro_batch, 1)]
    best: dict[tuple[str, int], float] = {}
    for _ in range(args.repeats):
        for name, case, taps in cases:
            ns = measure(case, taps, args.events // max(1, taps // 5))
            best[name, taps] = min(ns, best.get((name, taps), ns))
    print("| what | taps | ns | x plain loop |\n|---|---|---|---|")
    for (name, taps), ns in best.items():
        print(f"| {name} | {taps} | {ns:,.0f} | {ns / best['plain loop', taps]:.1f} |")


if __name__ == "__main__":
    main()
