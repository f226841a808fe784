"""Runs that are traced into memory, and the tree of what they leave; for the tests of tracing."""

from collections import defaultdict
from contextlib import contextmanager

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from agentflow.chain.tracing import install
from agentflow.observability.tracing import Tracing


class Traces:
    """What has been traced so far. `provider` makes spans that end up here too."""

    def __init__(self, provider, exporter):
        self.provider = provider
        self._exporter = exporter

    @property
    def spans(self):
        return self._exporter.get_finished_spans()

    def named(self, name):
        return [span for span in self.spans if span.name == name]

    def one(self, name):
        (span,) = self.named(name)
        return span

    def tree(self):
        """The names of all spans as (name, children), in the order of their starts; each must have ended once."""
        ids = [span.context.span_id for span in self.spans]
        assert len(ids) == len(set(ids))
        assert all(span.start_time <= span.end_time for span in self.spans)
        below = defaultdict(list)
        for span in sorted(self.spans, key=lambda span: (span.start_time, span.name)):
            below[span.parent.span_id if span.parent is not None else None].append(span)

        def grown(span):
            children = [grown(child) for child in below[span.context.span_id]]
            return (span.name, *children) if children else span.name

        return [grown(span) for span in below[None]]


@contextmanager
def traced(**options):
    """Trace all runs in the block. `options` are those of `Tracing` and `sampler`."""
    exporter = InMemorySpanExporter()
    sampler = {"sampler": options.pop("sampler")} if "sampler" in options else {}
    provider = TracerProvider(shutdown_on_exit=False, **sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    install(Tracing(provider, **options))
    try:
        yield Traces(provider, exporter)
    finally:
        install(None)


def failed(span):
    """The `error.type` of a span that has failed; None for any other."""
    assert (span.status.status_code is StatusCode.ERROR) == ("error.type" in span.attributes)
    return span.attributes.get("error.type")
