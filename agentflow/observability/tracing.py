"""Tracing: who makes spans of the runs of this process.

The spans of one run are in `run_spans`; who is traced at all is decided in `instrumentor`. A run whose root is not
sampled, or that nobody records, costs one look-up per event. A run that never ends keeps its spans for as long as it is
alive itself, and not longer.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from opentelemetry import context as current
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import TracerProvider

from agentflow.bus import EventBus
from agentflow.chain.tracing import RunTrace
from agentflow.events import AgentEvent
from agentflow.observability import semconv
from agentflow.observability.run_spans import W3C, Manner, RunSpans

logger = logging.getLogger(__name__)


class Tracing:
    """Traces the runs of a process; see `chain.tracing.Tracer`.

    It joins the bus of each run when that is made, and stays there. With `content` spans show what users, models and
    tools said, 1 KiB of each text.
    """

    def __init__(
        self, provider: TracerProvider | None = None, *, names: semconv.Semconv = "0.1.0", content: bool = False
    ) -> None:
        """`provider` is OpenTelemetry's global one if none is given."""
        self._manner = Manner(trace.get_tracer(semconv.SCOPE, version("agentflow-rx"), provider), names, content)
        self._runs: WeakValueDictionary[str, RunSpans] = WeakValueDictionary()
        self._buses: WeakSet[EventBus] = WeakSet()

    def trace(self, bus: EventBus, metadata: Mapping[str, Any], earlier: str | None) -> RunTrace:
        """See `chain.tracing.Tracer`. Without a current span a "traceparent" in the metadata names the parent."""
        if bus not in self._buses:
            self._buses.add(bus)
            bus.attach(self.see, name="agentflow tracing")
        base = Context() if earlier is not None else current.get_current()
        if not trace.get_current_span(base).get_span_context().is_valid:
            named = {name: value for name in W3C.fields if isinstance(value := metadata.get(name), str)}
            base = W3C.extract(named, base)
        return RunSpans(self._manner, self._runs, base, earlier)

    @contextmanager
    def incoming(self, headers: Mapping[str, str]) -> Iterator[None]:
        """See `chain.tracing.Tracer`. Where the server is instrumented itself, its span stays the parent."""
        if trace.get_current_span().get_span_context().is_valid:
            yield
            return
        token = current.attach(_extracted(headers))
        try:
            yield
        finally:
            current.detach(token)

    def see(self, event: AgentEvent) -> None:
        """The next event of any run."""
        run = self._runs.get(event.run_id)
        if run is not None:
            run.see(event)


def _extracted(headers: Mapping[str, str]) -> Context:
    try:
        return propagate.extract(headers)
    except Exception:  # how a trace is carried is configured by the user, and a request is not to fail for it
        logger.exception("the trace that a request names could not be read")
        return current.get_current()
