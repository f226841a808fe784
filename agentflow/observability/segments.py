"""Spans with the times of events: a run's, and all that are below it.

When one begins and ends is in `tracing`. None is ever made the current span of the code that is running: spans last
longer than any block of ours, so each names its parent itself.
"""

from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)

from agentflow.observability import semconv


class Family:
    """What the segments of one run share. `base` is the context that the run belongs to, `open` what has not ended."""

    __slots__ = ("base", "open", "tracer")

    def __init__(self, tracer: Tracer, base: Context) -> None:
        self.tracer = tracer
        self.base = base
        self.open: dict[Segment, None] = {}  # a parent before its children

    def end(self, at: int, outcome: str, error: str | None = None) -> None:
        """End all that is open, each before its parent."""
        for segment in reversed(tuple(self.open)):
            segment.end(at, {semconv.OUTCOME: outcome}, error)


class Segment:
    """Something that takes time: one span, or several in a row where its run was suspended in between.

    Each is linked to the one before, and stands below the span that the segment `above` has by then. One without is
    its run's: its further spans stand below its first, which keeps them in its trace. `past` is a span before the
    first, of another process.
    """

    __slots__ = ("_above", "_attributes", "_family", "_first", "_kind", "_name", "last", "span")

    def __init__(
        self,
        family: Family,
        name: str,
        attributes: Mapping[str, Any],
        above: "Segment | None",
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        past: SpanContext | None = None,
    ) -> None:
        self._family = family
        self._name = name
        self._attributes = attributes
        self._above = above
        self._kind = kind
        self._first = past
        self.last = past
        self.span: Span | None = None

    def live(self, at: int) -> Span:
        """The span that is open; a new one begins `at`, in nanoseconds since 1970, if none is."""
        if self.span is None:
            self.span = self._family.tracer.start_span(
                self._name,
                context=self._below(at),
                kind=self._kind,
                attributes=self._attributes,
                links=(Link(self.last),) if self.last is not None else (),
                start_time=at,
            )
            self.last = self.span.get_span_context()
            self._first = self._first or self.last
            self._family.open[self] = None
        return self.span

    def _below(self, at: int) -> Context:
        if self._above is not None:
            return set_span_in_context(self._above.live(at), self._family.base)
        if self._first is not None:
            return set_span_in_context(NonRecordingSpan(self._first), self._family.base)
        return self._family.base

    @property
    def context(self) -> Context:
        """The context of code that works for it."""
        span = self.span or (NonRecordingSpan(self.last) if self.last is not None else None)
        return self._family.base if span is None else set_span_in_context(span, self._family.base)

    def note(self, name: str, at: int, **attributes: str | int) -> None:
        """Something happened meanwhile."""
        if self.span is not None:
            self.span.add_event(name, attributes, at)

    def end(self, at: int, attributes: Mapping[str, Any], error: str | None = None) -> None:
        """It has ended, failed if there is the type of an error. Harmless if it has before."""
        span, self.span = self.span, None
        if span is None:
            return
        del self._family.open[self]
        span.set_attributes(attributes)
        if error is not None:
            span.set_attribute(semconv.ERROR_TYPE, error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(at)
