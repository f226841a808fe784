"""What `agentflow replay` does: holds a run's log, from the store or from a file, against today's machine.

How that is judged is in `state.replay`. Logs are read piece by piece.
"""

from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import msgspec

from agentflow.cli.chat import EXIT_FAILED
from agentflow.cli.output import print_lines
from agentflow.cli.runs import read, require
from agentflow.errors import RequestError
from agentflow.events import AgentEvent, decode
from agentflow.settings import Settings
from agentflow.state import Limits
from agentflow.state.replay import Difference, Replay
from agentflow.stores.base import Store
from agentflow.tools.registry import ToolRegistry


def limits_of(settings: Settings, tools: ToolRegistry) -> Limits:
    """What an agent with these settings and tools decides by; agents below it have the machine's own limits."""
    chain = settings.chain
    return Limits(
        max_iterations=chain.max_iterations,
        max_parallel_tools=chain.max_parallel_tools,
        max_round_calls=chain.max_round_calls,
        max_tool_calls=chain.max_tool_calls,
        token_budget=chain.token_budget,
        max_corrections=settings.tools.corrections,
        max_all_corrections=settings.tools.corrections_in_all,
        degraded=settings.model.degraded,
        sequential=frozenset(tool.name for tool in tools if tool.sequential),
    )


async def replay_run(store: Store, run_id: str, limits: Limits) -> int:
    """Replay a run of the store; 1 if it differs. Raises `RequestError` for an unknown one."""
    await require(store, run_id)
    log, fold = read(store, run_id), Replay(run_id, limits)
    async with aclosing(log):
        async for event in log:
            difference = fold.take(event)
            if difference is not None:
                return _told(fold, difference)
    return _told(fold, fold.end())


def replay_file(path: Path, limits: Limits) -> int:
    """Replay the runs in a file, one after the other; 1 if one differs, which is then the last.

    Raises `RequestError` for a file that does not hold whole logs.
    """
    fold: Replay | None = None
    for number, event in _events(path):
        if fold is None or event.run_id != fold.state.run_id:
            if fold is not None and (code := _told(fold, fold.end())):
                return code
            if event.seq != 1:
                raise RequestError(
                    f"{str(path)!r}, line {number}: run {event.run_id!r} begins with event {event.seq}; a replay needs "
                    "all of a run's events, each run's together"
                )
            fold = Replay(event.run_id, limits)
        difference = fold.take(event)
        if difference is not None:
            return _told(fold, difference)
    if fold is None:
        raise RequestError(f"{str(path)!r} has no events: give a file as `agentflow events` and `chat --json` write it")
    return _told(fold, fold.end())


def _events(path: Path) -> Iterator[tuple[int, AgentEvent]]:
    """The events in a file, each with the number of its line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield number, decode(line)
            except (msgspec.MsgspecError, UnicodeError) as error:
                raise RequestError(f"{str(path)!r}, line {number} is no event: {error}") from error


def _told(fold: Replay, difference: Difference | None) -> int:
    run_id = fold.state.run_id
    if difference is None:
        rest = "" if fold.state.ended else "; it has not ended"
        print_lines([f"run {run_id}: the same decisions in all of its {fold.seq} events{rest}"])
        return 0
    where = f"run {run_id} differs at event {difference.seq}"
    print_lines([f"{where}: expected {difference.expected}, found {difference.found}"])
    return EXIT_FAILED
