"""What the log tells of a run, and what it does not."""

import logging

import pytest

from agentflow.observability.run_log import MAX_WORDS, line_of
from tests import builders
from tests.builders import log_of
from tests.observability.mixed import mixed_agent, run_all

SILENT = {"state", "delta", "model_start", "tool_start", "tool_delta", "gap"}


async def lines(content):
    async with mixed_agent() as agent:
        events = [event for run_id in await run_all(agent) for event in await log_of(agent, run_id)]
    return events, [line_of(event, content=content) for event in events]


async def test_each_event_of_interest_is_a_line_with_the_ids_to_find_it_by():
    events, told = await lines(content=False)
    for event, line in zip(events, told, strict=True):
        assert (line is None) == (event.type.value in SILENT)
        if line is not None:
            fields = line[2]
            assert (fields["run"], fields["trace"], fields["session"]) == (
                event.run_id,
                event.trace_id,
                event.session_id,
            )
            assert fields.get("chain", event.run_id) == event.chain_id
            assert fields["agent"] == "/".join(event.path)
    said = {line[1] for line in told if line}
    assert said >= {"run began", "agent called", "model answered", "tool done", "tool failed", "approval wanted"}
    assert said >= {"decided", "warning", "run ended", "run failed", "run cancelled"}


async def test_words_are_told_only_where_they_are_asked_for():
    words = {"text", "result", "error", "arguments", "message"}
    _, without = await lines(content=False)
    assert not any(line[2].keys() & words for line in without if line)
    _, told = await lines(content=True)
    assert {name for line in told if line for name in line[2].keys() & words} == words


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (builders.failed(), logging.ERROR),
        (builders.tool_error("c1"), logging.WARNING),
        (builders.warning(), logging.WARNING),
        (builders.rollback(), logging.WARNING),
        (builders.cancelled(), logging.INFO),
        (builders.question("c1"), logging.INFO),
        (builders.summary(), logging.INFO),
    ],
)
def test_the_level_says_how_bad_it_is(event, level):
    assert line_of(event)[0] == level


def test_no_more_of_words_is_kept_than_a_line_can_show():
    _, _, fields = line_of(builders.begin("x" * 10 * MAX_WORDS), content=True)
    assert len(fields["text"]) == MAX_WORDS
