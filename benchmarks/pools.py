"""What hung threads cost the others: the same work with 8 of them and without, in one interleaved run.

    python benchmarks/pools.py [--calls 400] [--repeats 5]

The pools have 4 threads; the 8 hang in calls that were given up, in the pool of the second and third row and beside
the work of the others. Each call sleeps a millisecond. The baseline is a bare `ThreadPoolExecutor` of 4 threads, which
is given a second to get anything done when its threads hang. Wall time, best of the repeats; about ten seconds in all.
"""

import argparse
import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from agentflow import Agent, ModelChunk, tool
from agentflow.settings import Settings
from agentflow.testing import call
from agentflow.tools.pools import ThreadPool

THREADS = 4
HUNG = 8
PATIENCE = 1.0  # seconds for the baseline, which never ends when its threads hang


def work() -> None:
    time.sleep(0.001)


class Bench:
    """Everything that is measured, with 8 hung threads or none."""

    def __init__(self, *, hung: int) -> None:
        self._hung = hung
        self._over = threading.Event()
        self._executor = ThreadPoolExecutor(THREADS)
        self._pool = ThreadPool("bench", size=THREADS, queue=10_000)
        self._agent = self._make_agent()

    def _make_agent(self) -> Agent:
        @tool(pool="hung", timeout=0.05)
        def hang() -> str:
            self._over.wait()
            return "too late"

        @tool(pool="hung")
        def same_pool() -> str:
            work()
            return "done"

        @tool(pool="other")
        def other_pool() -> str:
            work()
            return "done"

        async def model(request):
            last = request.messages[-1]
            if last.role == "user":
                yield ModelChunk(calls=(call(last.content),), finish_reason="tool_calls")
            else:
                yield ModelChunk(text="done", finish_reason="stop")

        pools = {"hung": {"size": THREADS}, "other": {"size": THREADS}}
        return Agent(model=model, tools=[hang, same_pool, other_pool], settings=Settings(pools=pools))

    @asynccontextmanager
    async def open(self):
        """With its threads hung; they are let go at the end."""
        try:
            for _ in range(self._hung):
                self._executor.submit(self._over.wait)
                try:
                    await asyncio.wait_for(self._pool.run(self._over.wait), 0.05)
                except TimeoutError:
                    continue
            while self._agent.abandoned < self._hung:
                await self._agent.chat("hang")
            assert self._pool.abandoned == self._hung
            yield self
        finally:
            self._over.set()
            self._pool.close()
            self._executor.shutdown(cancel_futures=True)
            await self._agent.aclose()

    async def bare_executor(self, calls: int) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._executor, work) for _ in range(calls)))

    async def thread_pool(self, calls: int) -> None:
        await asyncio.gather(*(self._pool.run(work) for _ in range(calls)))

    async def conversation_same_pool(self, calls: int) -> None:
        for _ in range(calls // 10):
            await self._agent.chat("same_pool")

    async def conversation_other_pool(self, calls: int) -> None:
        for _ in range(calls // 10):
            await self._agent.chat("other_pool")

    async def name_look_up(self, calls: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(calls):
            await loop.getaddrinfo("localhost", 80)


CASES: dict[str, tuple[Callable[[Bench, int], Awaitable[None]], int]] = {
    "bare executor, a call": (Bench.bare_executor, 1),
    "ThreadPool, a call": (Bench.thread_pool, 1),
    "a conversation with a call in the same pool": (Bench.conversation_same_pool, 10),
    "a conversation with a call in another pool": (Bench.conversation_other_pool, 10),
    "a look-up of localhost": (Bench.name_look_up, 1),
}


async def measure(case: Callable[[Bench, int], Awaitable[None]], bench: Bench, calls: int) -> float | None:
    """Seconds, or None if nothing came of it."""
    began = time.perf_counter()
    try:
        await asyncio.wait_for(case(bench, calls), None if case is not Bench.bare_executor else PATIENCE)
    except TimeoutError:
        return None
    return time.perf_counter() - began


async def run(calls: int, repeats: int) -> dict[tuple[str, int], float | None]:
    best: dict[tuple[str, int], float | None] = {}
    async with Bench(hung=0).open() as free, Bench(hung=HUNG).open() as hung:
        for _ in range(repeats):
            for name, (case, per) in CASES.items():
                for count, bench in ((0, free), (HUNG, hung)):
                    if (name, count) in best and best[name, count] is None:
                        continue  # it would only wait in vain again
                    seconds = await measure(case, bench, calls)
                    each = seconds if seconds is None else seconds / calls * per * 1e6
                    before = best.get((name, count))
                    best[name, count] = each if before is None or each is None else min(each, before)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    best = asyncio.run(run(args.calls, args.repeats))
    print(f"| what | us, nothing hangs | us, {HUNG} threads hang | ratio |\n|---|---|---|---|")
    for name in CASES:
        free, hung = best[name, 0], best[name, HUNG]
        told = ("none done", "-") if hung is None else (f"{hung:,.0f}", f"{hung / free:.2f}")
        print(f"| {name} | {free:,.0f} | {told[0]} | {told[1]} |")


if __name__ == "__main__":
    main()
