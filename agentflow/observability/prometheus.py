"""Metrics as Prometheus reads them: a meter of one's own, and its values as text. Needs the extra `prometheus`.

What is measured with the meter is in `metrics`; who may read the text is the transport's business.
"""

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from agentflow.observability.semconv import SCOPE


class Exposition:
    """The metrics of one server: whoever else uses OpenTelemetry or Prometheus in the process sees none of them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(
            registry=self._registry,
            # The same few labels on every series would say nothing.
            scope_info_enabled=False,
            disable_target_info=True,
        )
        self._provider = MeterProvider(
            metric_readers=[reader],
            shutdown_on_exit=False,
            exemplar_filter=AlwaysOffExemplarFilter(),  # the exporter writes none
        )

    @property
    def meter(self) -> Meter:
        """Measure with this."""
        return self._provider.get_meter(SCOPE)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """The values as they are now, and their content type: of the two formats the one that is accepted."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def close(self) -> None:
        """Let go of all instruments."""
        self._provider.shutdown()
