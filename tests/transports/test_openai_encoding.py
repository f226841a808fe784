from pathlib import Path

import pytest

from agentflow.events import FinalEvent, decode
from agentflow.messages import Usage
from agentflow.transports.openai_encoding import CompletionEncoder, answer, error_body
from agentflow.transports.views import RunView
from tests.builders import approval, begin, delta, make, model_complete, model_start, question, rollback

LOGS = sorted((Path(__file__).parent.parent / "data").glob("*.ndjson"))


def told_of(log, **options):
    """The stream and the view of a run."""
    encoder, view = CompletionEncoder("r", "shop", 7, **options), RunView(log[0].run_id)
    told = list(encoder.start())
    for event in log:
        told += encoder.encode(event)
    view.take(log)
    return [*told, *encoder.end(view)], view


def texts(told):
    return "".join(one["choices"][0]["delta"].get("content", "") for one in told if one.get("choices"))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_log_is_a_stream_with_one_end(path):
    log = [decode(line) for line in path.read_bytes().splitlines()]
    told, view = told_of(log, include_usage=True)
    *chunks, last = told
    if view.error is not None:
        assert set(last) == {"error"}
        assert not any("error" in one for one in chunks)
        return
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == view.usage.input_tokens
    ends = [one["choices"][0]["finish_reason"] for one in chunks]
    assert (set(ends[:-1]), ends[-1] in ("stop", "length")) == ({None}, True)
    assert texts(chunks).endswith(answer(view))
    whole = CompletionEncoder("r", "shop", 7).whole(view)
    assert whole["choices"][0]["message"]["content"] == answer(view)
    assert whole["usage"] == last["usage"]
    assert whole["choices"][0]["finish_reason"] == ends[-1]


@pytest.mark.parametrize(
    ("reason", "told"),
    [("stop", "stop"), ("length", "length"), ("budget", "length"), ("max_iterations", "length"), ("loop", "stop")],
)
def test_why_an_answer_ended_is_told_in_the_words_of_openai(reason, told):
    end = make(FinalEvent, text="x", finish_reason=reason, usage=Usage(), iterations=1, duration_ms=1.0)
    chunks, _ = told_of([begin(), delta("x"), end])
    assert chunks[-1]["choices"][0]["finish_reason"] == told


def test_texts_of_different_rounds_and_attempts_stand_apart():
    encoder = CompletionEncoder("r", "shop", 7)
    said = [delta("one"), rollback(), delta("two", attempt=2), delta("!", attempt=2), delta("three", iteration=2)]
    assert texts([one for event in said for one in encoder.encode(event)]) == "one\n\ntwo!\n\nthree"


def test_reasoning_is_told_as_most_servers_do_and_what_children_say_is_not():
    child = {"chain_id": "c", "parent_chain_id": "r", "path": ("agent", "child")}
    log = [begin(), delta("hm", channel="reasoning"), make(type(delta("x")), text="x", **child), delta("y")]
    chunks, _ = told_of(log)
    assert [one["choices"][0]["delta"] for one in chunks[1:3]] == [{"reasoning_content": "hm"}, {"content": "y"}]


def test_what_waits_is_told_after_what_was_said():
    told, view = told_of([begin(), model_start(), delta("I pay. "), model_complete("c1"), approval("c1")])
    assert texts(told) == "I pay. \n\n[look waits for approval, which cannot be given here]"
    assert answer(view) == "I pay.\n\n[look waits for approval, which cannot be given here]"
    view = RunView("r")
    view.take([begin(), model_start(), delta('{"question": "Which?"}'), model_complete(), question("q")])
    assert answer(view) == "Which?\n- a\n- b"


@pytest.mark.parametrize(
    ("status", "kind", "error_type", "code"),
    [
        (400, "request", "invalid_request_error", "request"),
        (401, "unauthorized", "invalid_request_error", "invalid_api_key"),
        (429, "limit", "rate_limit_error", "rate_limit_exceeded"),
        (503, "unavailable", "server_error", "unavailable"),
    ],
)
def test_errors_have_a_type_and_a_code(status, kind, error_type, code):
    body = error_body(status, kind, "no", "p")
    assert body == {"error": {"message": "no", "type": error_type, "param": "p", "code": code}}
