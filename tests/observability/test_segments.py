import pytest
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags, get_current_span

from agentflow.observability.segments import Family, Segment
from tests.observability.traces import failed, traced


@pytest.fixture
def traces():
    with traced() as found:
        yield found


@pytest.fixture
def family(traces):
    return Family(traces.provider.get_tracer("t"), Context())


def test_a_span_begins_and_ends_when_it_is_said_to_and_ends_once(traces, family):
    segment = Segment(family, "work", {"a": 1}, None)
    assert segment.live(10) is segment.live(20)
    segment.note("half-way", 15, part=1)
    segment.end(30, {"b": 2}, "timeout")
    segment.end(40, {})
    segment.note("too late", 50)

    span = traces.one("work")
    assert (span.start_time, span.end_time, dict(span.attributes)) == (
        10,
        30,
        {"a": 1, "b": 2, "error.type": "timeout"},
    )
    assert [(event.name, event.timestamp) for event in span.events] == [("half-way", 15)]
    assert failed(span) == "timeout"


def test_what_is_interrupted_goes_on_in_a_linked_span_below_that_of_its_parent_by_then(traces, family):
    root = Segment(family, "root", {}, None)
    child = Segment(family, "child", {}, root)
    child.live(10)
    family.end(20, "suspended")
    assert not family.open
    child.live(30)
    family.end(40, "completed")

    (root_1, root_2), (child_1, child_2) = traces.named("root"), traces.named("child")
    assert [link.context for link in child_2.links] == [child_1.context]
    assert child_2.parent.span_id == root_2.context.span_id
    assert root_2.parent.span_id == root_1.context.span_id
    assert len({span.context.trace_id for span in traces.spans}) == 1


def test_children_end_before_their_parents(traces, family):
    root = Segment(family, "root", {}, None)
    Segment(family, "child", {}, root).live(10)
    family.end(20, "failed", "store")

    assert [span.name for span in traces.spans] == ["child", "root"]
    assert {failed(span) for span in traces.spans} == {"store"}


def test_a_past_of_another_process_is_parent_and_link(traces, family):
    past = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    segment = Segment(family, "root", {}, None, past=past)
    assert get_current_span(segment.context).get_span_context() == past
    segment.live(10)
    segment.end(20, {})

    span = traces.one("root")
    assert (span.parent, span.context.trace_id, span.links[0].context) == (past, 1, past)


def test_code_that_works_for_a_segment_finds_its_span_also_after_its_end(traces, family):
    segment = Segment(family, "work", {}, None)
    assert segment.context == Context()
    span = segment.live(10)
    assert get_current_span(segment.context) is span
    segment.end(20, {})
    assert get_current_span(segment.context).get_span_context() == span.get_span_context()
