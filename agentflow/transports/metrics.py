"""`/metrics`, and what is measured for it while the server runs.

What is counted is in `observability`. Without the extra `prometheus` nothing is, and the route says so; the event loop
is watched all the same.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from aiohttp import web

from agentflow.events import State
from agentflow.observability.loop_lag import LoopWatch
from agentflow.transports.refusals import Refused
from agentflow.transports.routes import Route
from agentflow.transports.server import SERVER, Server


async def metrics(request: web.Request) -> web.Response:
    """`GET /metrics`: the values as they are now, for Prometheus."""
    server = request.app[SERVER]
    if not server.settings.telemetry.metrics:
        raise Refused(404, "not_found", "metrics are turned off: telemetry.metrics")
    if server.exposition is None:
        raise Refused(501, "config", "metrics need the extra: pip install 'agentflow-rx[prometheus]'")
    text, content_type = server.exposition(request.headers.get("Accept", ""))
    return web.Response(body=text, headers={"Content-Type": content_type})


@contextmanager
def measured(server: Server) -> Iterator[None]:
    """Measure the server and its agents for as long as this lasts. Needs the running loop."""
    with ExitStack() as stack:
        record = _measure(server, stack) if server.settings.telemetry.metrics else None
        watch = LoopWatch(lambda: _is_busy(server), record or _ignore, lambda *told: _warn(server, *told))
        stack.callback(watch.close)
        for bus in server.buses():
            stack.callback(bus.attach(watch.see, name="loop watch").dispose)
        yield


def _measure(server: Server, stack: ExitStack) -> Callable[[float], None] | None:
    """Begin to; gives what records the lag of the loop, None where OpenTelemetry is not installed."""
    try:
        from agentflow.observability.instruments import observe  # with the next two needs the extra `prometheus`
        from agentflow.observability.metrics import Metrics
        from agentflow.observability.prometheus import Exposition
    except ImportError:
        return None
    exposition, readings, firehose = Exposition(), server.readings, server.firehose
    stack.callback(exposition.close)
    meter = exposition.meter
    counted = Metrics(meter, tuple(server.agents.values()), conventions=server.settings.telemetry.semconv)
    stack.callback(counted.attach().dispose)
    for name, unit, description, read in (
        ("readers", "{reader}", "Clients that read a run.", lambda: len(readings)),
        ("lag_events", "{event}", "Events that the slowest reader has not taken yet.", readings.lag),
    ):
        observe(meter, "gauge", f"agentflow.stream.{name}", unit, description, _reading(read))
    for name, unit, description, read in (
        ("bytes", "By", "Bytes sent to those who read runs.", lambda: readings.bytes),
        ("resumes", "{resume}", "Readers that went on after an event they had seen.", lambda: readings.resumes),
        ("gaps", "{gap}", "Gaps that readers of all events were told of.", lambda: firehose.gaps),
        ("dropped", "{reader}", "Clients that were cut off, since they took nothing.", lambda: readings.dropped),
    ):
        observe(meter, "counter", f"agentflow.stream.{name}", unit, description, _reading(read))
    server.exposition = exposition.text
    stack.callback(_stop, server)
    return counted.lag


def _reading(read: Callable[[], int]) -> Callable[[], list[tuple[float, dict[str, str]]]]:
    return lambda: [(read(), {})]


def _stop(server: Server) -> None:
    server.exposition = None


def _ignore(_: float) -> None:
    """Nobody counts."""


def _is_busy(server: Server) -> bool:
    """Whether a run goes on; one that waits for people does not."""
    return any(chain.state is not State.SUSPENDED for agent in server.agents.values() for chain in agent.live())


def _warn(server: Server, message: str, data: dict[str, Any]) -> None:
    for agent in server.agents.values():
        for chain in agent.live():
            if chain.state is not State.SUSPENDED:
                chain.warn("loop_lag", message, data)


ROUTES = (
    Route(
        method="GET",
        path="/metrics",
        handler=metrics,
        summary="The metrics of this process, as Prometheus reads them.",
        scope="operator",
        answer="text/plain",
    ),
)
