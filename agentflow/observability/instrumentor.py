"""Who is traced: everybody in the process, from `instrument` on.

`opentelemetry-instrument agentflow serve` finds `AgentflowInstrumentor` by its entry point. It has no base class: that
stands in a package of which there has never been a stable release.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import TracerProvider

from agentflow.chain.tracing import install, installed
from agentflow.observability.tracing import Tracing
from agentflow.settings import Settings, captures_content

logger = logging.getLogger(__name__)

_LAST_SPANS = 5.0  # seconds for which the end of the process waits for whoever takes them


class AgentflowInstrumentor:
    """Traces the runs of all agents of the process.

    As the conventions' own variable says, spans show what was said: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT.
    """

    def instrument(self, *, tracer_provider: TracerProvider | None = None, **_: Any) -> None:
        """Begin, for runs that are made from now on. `tracer_provider` is OpenTelemetry's global one if left out.

        Other arguments are those of other instrumentations, and have no meaning here. Raises `ConfigError` for settings
        that cannot be read.
        """
        if installed() is not None:
            logger.warning("agentflow is traced already; uninstrument() it first")
            return
        install(Tracing(tracer_provider, names=Settings().telemetry.semconv, content=captures_content()))

    def uninstrument(self, **_: Any) -> None:
        """End. Runs that were made before are traced to their ends."""
        install(None)


def export_traces() -> Callable[[], None]:
    """Trace all runs, and send the spans over OTLP to where the standard variables (OTEL_EXPORTER_OTLP_...) say.

    Nothing is done where `opentelemetry-instrument` or the program itself has set up a provider of spans. Call what is
    given at the end of the process: it sends what is left, within 5 s.
    """
    if installed() is not None or isinstance(trace.get_tracer_provider(), SdkTracerProvider):
        return lambda: None
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "agentflow"}))
    provider = SdkTracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)  # so that the spans of tools are sent too
    AgentflowInstrumentor().instrument(tracer_provider=provider)
    return partial(_shut_down, provider)


def _shut_down(provider: SdkTracerProvider) -> None:
    """Send what is left, unless that takes so long that nobody seems to take it."""
    last = threading.Thread(target=provider.shutdown, name="agentflow last spans", daemon=True)
    last.start()
    last.join(_LAST_SPANS)
