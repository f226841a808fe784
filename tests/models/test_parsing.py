import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import (
    ModelError,
    ModelProtocolError,
    ModelRateLimitError,
    ModelStatusError,
    ModelTruncatedError,
)
from agentflow.messages import Usage
from agentflow.models import parsing
from agentflow.models.base import CallRequest, ModelChunk
from agentflow.models.framing import MAX_EVENT_BYTES
from agentflow.models.parsing import MAX_TEXT, ChatStreamParser, parse_completion

DONE = b"data: [DONE]\n\n"
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


def event(content) -> bytes:
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


def delta(finish=None, index=0, **fields) -> bytes:
    return event({"choices": [{"index": index, "delta": fields, "finish_reason": finish}]})


def call(call_id=None, name=None, arguments=None, index=0) -> dict:
    return {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}


def read(*pieces: bytes) -> list[ModelChunk]:
    parser = ChatStreamParser("acme")
    return [*(chunk for piece in pieces for chunk in parser.feed(piece)), *parser.finish()]


def text(chunks, channel="text") -> str:
    return "".join(getattr(chunk, channel) for chunk in chunks)


# Chunks and their joining


def test_adjacent_text_of_one_feed_is_one_chunk_that_counts():
    chunks = read(delta(content="a") + delta(content="b"), delta(content="c") + STOP + DONE)
    assert chunks == [
        ModelChunk(text="ab", count=2),
        ModelChunk(text="c", count=1),
        ModelChunk(finish_reason="stop", count=0),
    ]


def test_channels_never_join_and_keep_their_order():
    reasoned = delta(reasoning_content="x", content=None) + delta(reasoning="y") + delta(content="a")
    chunks = read(reasoned + delta(reasoning_content="z", content="b") + delta(refusal="no") + STOP)
    said = [(chunk.reasoning, chunk.text, chunk.refusal, chunk.count) for chunk in chunks[:-1]]
    assert said == [("xy", "", "", 2), ("", "a", "", 1), ("z", "", "", 1), ("", "b", "", 1), ("", "", "no", 1)]


def test_reasoning_under_two_names_counts_once():
    assert text(read(delta(reasoning_content="x", reasoning="x") + STOP), "reasoning") == "x"


def test_content_may_be_a_list_of_parts():
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]
    chunks = read(delta(content=parts) + delta(content=["a", {"type": "image"}, 7]) + STOP)
    assert (text(chunks, "reasoning"), text(chunks)) == ("hm", "yesa")


def test_nothing_comes_of_empty_deltas():
    nothing = (
        delta(content="") + delta(content=None, tool_calls=None) + delta(role="assistant") + event({"choices": []})
    )
    assert read(nothing + event({"choices": None}) + event({}) + STOP) == [ModelChunk(finish_reason="stop", count=0)]


def test_only_the_first_choice_counts():
    body = delta(content="a") + delta(content="B", index=1) + delta(finish="length", index=1) + STOP
    chunks = read(body)
    assert text(chunks) == "a"
    assert chunks[-1].finish_reason == "stop"


def test_the_line_ends_of_other_alphabets_stay_text():
    said = "a\u2028b\u0085c\x0bd"
    raw = event(json.dumps({"choices": [{"delta": {"content": said}}]}, ensure_ascii=False).encode())
    assert text(read(raw + STOP)) == said


@pytest.mark.parametrize("newline", [b"\n", b"\r", b"\r\n"])
def test_no_space_a_mark_comments_and_other_line_ends_change_nothing(newline):
    body = b"\xef\xbb\xbf: hi\n\n" + delta(content="é😀").replace(b"data: ", b"data:") + STOP + DONE
    body = body.replace(b"\n", newline)
    for at in range(len(body) + 1):
        assert text(read(body[:at], body[at:])) == "é😀"


def test_json_over_several_data_lines_is_one_event():
    assert text(read(b'data: {"choices":\ndata: [{"delta":\ndata: {"content":"a"}}]}\n\n' + STOP)) == "a"


# What msgspec refuses


def test_not_a_number_is_read_over():
    raw = b'{"choices":[{"delta":{"content":"a"},"logprobs":NaN}],"score":-Infinity}'
    assert text(read(event(raw) + STOP)) == "a"


def test_surrogate_halves_meet_across_events_and_feeds():
    first, second = (event(b'{"choices":[{"delta":{"content":"%s"}}]}' % half) for half in (b"a\\ud83d", b"\\ude00b"))
    assert read(first + second + STOP)[:-1] == [ModelChunk(text="a😀b", count=2)]
    assert text(read(first, second, STOP)) == "a😀b"
    chunks = read(*(bytes([byte]) for byte in first + second + STOP))
    assert text(chunks) == "a😀b"
    assert sum(chunk.count for chunk in chunks) == 2


def test_a_half_that_stays_alone_is_replaced():
    first = event(b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}')
    low = event(b'{"choices":[{"delta":{"content":"\\ude00"}}]}')
    assert text(read(first, delta(content="b"), STOP)) == "a\ufffdb"
    assert text(read(first, delta(reasoning="b"), low, STOP)) == "a\ufffd\ufffd"
    assert text(read(first, DONE)) == "a\ufffd"


# Ends


def test_a_finish_reason_or_the_end_mark_makes_a_reply_whole():
    for ending in (STOP, DONE, STOP + DONE, DONE.strip(), STOP.strip(), b"data:[DONE]"):
        assert text(read(delta(content="a") + ending)) == "a"
    assert read(delta(content="a") + DONE)[-1].finish_reason is None


def test_without_either_a_reply_is_cut():
    for body in (
        b"",
        delta(content="a"),
        delta(content="a", finish=""),
        STOP.strip()[:-1],
        DONE[:10],
        b"<html></html>",
    ):
        parser = ChatStreamParser("acme")
        parser.feed(body)
        assert not parser.complete
        with pytest.raises(ModelTruncatedError, match="'acme' ended the reply without a finish reason"):
            parser.finish()


def test_the_last_finish_reason_that_says_something_counts():
    body = delta(content="a", finish="stop") + delta(content="b", finish="length") + delta(finish="") + DONE
    assert read(body)[-1].finish_reason == "length"


def test_text_after_the_finish_reason_still_counts_but_not_after_the_end_mark():
    parser = ChatStreamParser("acme")
    chunks = parser.feed(STOP + delta(content="a") + DONE + delta(content="b") + event(b"{broken"))
    assert parser.ended
    assert text(chunks) == "a"
    assert parser.feed(delta(content="c")) == []
    assert parser.finish()[-1].finish_reason == "stop"


def test_a_cut_last_event_is_dropped():
    body = delta(content="a") + STOP
    assert text(read(body + delta(content="b").strip()[:-1])) == "a"
    assert text(read(body + delta(content="b").strip())) == "ab"
    assert text(read(body + b"data: 12")) == "a"


# Calls


def test_calls_are_whole_only_at_the_end():
    parser = ChatStreamParser("acme")
    assert parser.feed(delta(tool_calls=[call("a", "f", '{"x"')]) + delta(tool_calls=[call(arguments=":1}")])) == []
    with pytest.raises(ModelTruncatedError):
        parser.copy().finish()
    parser.feed(delta(finish="tool_calls"))
    assert parser.finish()[-1].calls == (CallRequest(id="a", name="f", arguments='{"x":1}'),)


def test_a_call_that_was_cut_by_length_is_given_as_it_is():
    last = read(delta(tool_calls=[call("a", "f", '{"x"')]) + delta(finish="length"))[-1]
    assert (last.finish_reason, last.calls[0].arguments) == ("length", '{"x"')


def test_the_old_function_call_is_one_call_without_id():
    body = delta(function_call={"name": "f", "arguments": "{"}) + delta(function_call={"arguments": "}"})
    assert read(body + delta(finish="function_call"))[-1].calls == (CallRequest(name="f", arguments="{}"),)


# Usage and opaque data


@pytest.mark.parametrize(
    "where",
    [
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
        {"choices": [{"index": 0, "delta": {}}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
        {"choices": [], "x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}},
        {"usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    ],
)
def test_usage_is_read_wherever_it_stands(where):
    empty = event({"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": None}})
    chunks = read(delta(content="a") + event(where) + empty + STOP + event({"choices": [], "usage": None}))
    assert chunks[-1].usage == Usage(input_tokens=3, output_tokens=4)
    assert len(chunks) == 2


def test_usage_that_is_not_there_is_unknown_and_not_zero():
    assert read(STOP)[-1].usage is None
    assert (
        read(STOP + event({"choices": [], "usage": {"prompt_tokens": "3", "completion_tokens": 10**30}}))[-1].usage
        is None
    )


def test_reasoning_details_are_collected_verbatim():
    details = [{"type": "reasoning.text", "text": "a", "index": 0}, {"signature": "s", "index": 0}]
    chunks = read(delta(reasoning="a", reasoning_details=details[:1]) + delta(reasoning_details=details[1:]) + STOP)
    assert chunks[-1].provider_data == {"reasoning_details": details}


def test_reasoning_content_is_kept_for_the_provider_only_beside_calls():
    thoughts = delta(reasoning_content="a") + delta(reasoning_content="b")
    assert read(thoughts + STOP)[-1].provider_data is None
    asking = delta(tool_calls=[call("a", "f", "{}")])
    assert read(thoughts + asking + STOP)[-1].provider_data == {"reasoning_content": "ab"}
    assert read(delta(reasoning="a") + asking + STOP)[-1].provider_data is None


def test_reasoning_details_can_always_be_encoded_again():
    halves = event(b'{"choices":[{"delta":{"reasoning_details":[{"text":"\\ud83d","n":NaN}]}}]}')
    assert read(halves + STOP)[-1].provider_data["reasoning_details"][0]["text"] == "\ufffd"
    deep = event(b'{"choices":[{"delta":{"reasoning_details":%s}}]}' % (b"[" * 70 + b"]" * 70))
    with pytest.raises(ModelProtocolError, match="deeper than 64"):
        read(deep + STOP)


# Errors


@pytest.mark.parametrize(
    "raw",
    [
        event({"error": {"message": "no luck", "code": 503}}),
        event({"error": {"message": "no luck", "code": 503}, "choices": []}),
        event({"choices": [{"index": 0, "delta": {"content": ""}, "error": {"message": "no luck", "code": 503}}]}),
        event({"choices": [], "x_groq": {"error": {"message": "no luck", "code": 503}}}),
        event({"message": "no luck", "code": 503}),
        b"event: error\n" + event({"reason": {}, "message": "no luck", "status": 503}),
        b"event: error\n" + event({"error": {"message": "no luck", "status_code": 503}}),
    ],
)
def test_an_error_object_wins_and_the_text_before_it_is_out(raw):
    for body in (raw, delta(content="a") + raw, delta(content="a") + STOP + raw + DONE):
        parser = ChatStreamParser("acme")
        assert text(parser.feed(body + delta(content="after"))) == ("" if body is raw else "a")
        assert parser.ended
        assert not parser.complete
        with pytest.raises(ModelStatusError, match="'acme' failed while it answered: no luck") as caught:
            parser.finish()
        assert (caught.value.status, caught.value.retryable, caught.value.provider) == (503, True, "acme")


def test_an_error_may_be_plain_words():
    for raw in (event({"error": "no luck"}), b"event: error\ndata: no luck\n\n"):
        with pytest.raises(ModelStatusError, match="no luck"):
            read(raw)


def test_a_rate_limit_in_a_stream_is_one():
    with pytest.raises(ModelRateLimitError):
        read(event({"error": {"code": 429, "message": "slow down"}}))


def test_the_finish_reason_error_is_no_finish_and_gives_way_to_words():
    with pytest.raises(ModelStatusError, match="finish reason 'error'"):
        read(delta(content="a", finish="error") + DONE)
    with pytest.raises(ModelStatusError, match="no luck"):
        read(delta(finish="error") + event({"error": {"message": "no luck"}}))


def test_no_error_says_the_key():
    parser = ChatStreamParser("acme", secret="the/secret")
    parser.feed(event({"error": {"message": "bad key the/secret"}}))
    with pytest.raises(ModelStatusError) as caught:
        parser.finish()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        b"{broken",
        b"12",
        b'"text"',
        b"null",
        b"[]",
        b'{"choices": "x"}',
        b'{"choices": [null]}',
        b'{"choices": [{"delta": {"tool_calls": {}}}]}',
        b'{"choices": [{"delta": {"content": "\xff"}}]}',
        b'{"choices": [{"delta": {"content": "\xed\xa0\x80"}}]}',
        b"[" * 100_000,
        b'{"x":' + b"[" * 100_000,
        b'{"x":' + b"9" * 5_000,
        "{}".encode("utf-16"),
    ],
)
def test_what_is_no_chunk_is_a_protocol_error(raw):
    with pytest.raises(ModelProtocolError, match="'acme' sent") as caught:
        read(delta(content="a") + event(raw) + STOP)
    assert caught.value.provider == "acme"
    assert len(str(caught.value)) < 600


def test_a_number_no_float_can_hold_is_read_over():
    assert text(read(event(b'{"choices":[{"delta":{"content":"a"},"x":1e999}],"n":%s}' % (b"9" * 300)) + STOP)) == "a"


def test_limits_end_the_reply():
    with pytest.raises(ModelProtocolError, match=f"more than {MAX_EVENT_BYTES} bytes"):
        read(b"data: " + b"x" * (MAX_EVENT_BYTES + 1))
    half = delta(content="x" * (MAX_TEXT // 2))
    assert len(text(read(half + half + STOP))) == MAX_TEXT
    for more in (delta(content="x"), delta(reasoning="x"), delta(reasoning_details=[1])):
        with pytest.raises(ModelProtocolError, match=f"longer than {MAX_TEXT} characters"):
            read(half + half + more + STOP)
    with pytest.raises(ModelProtocolError, match="more than 128 tool calls"):
        read(delta(tool_calls=[call(f"c{index}", "f", "{}", index) for index in range(129)]) + STOP)


# Copies


def test_a_copy_goes_its_own_way():
    parser = ChatStreamParser("acme")
    body = delta(content="a") + delta(tool_calls=[call("a", "f", "{")]) + b'data: {"choices":'
    parser.feed(body)
    twin, deep = parser.copy(), copy.deepcopy(parser)
    rest = b'[{"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n'
    for each in (twin, deep):
        assert text(each.feed(rest)) == "b"
        assert each.finish()[-1].calls[0].arguments == "{"
    with pytest.raises(ModelTruncatedError):
        parser.finish()


# Replies that are not streamed


def completion(**message) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}).encode()


def test_a_completion_gives_text_reasoning_and_its_end():
    assert parse_completion(completion(content="a", reasoning_content="b")) == [
        ModelChunk(reasoning="b"),
        ModelChunk(text="a"),
        ModelChunk(finish_reason="stop", usage=Usage(input_tokens=1, output_tokens=2), count=0),
    ]


def test_each_call_of_a_completion_is_one_call():
    calls = [{"id": "", "function": {"name": "f", "arguments": "{}"}}] * 2
    assert parse_completion(completion(content=None, tool_calls=calls))[-1].calls == (
        CallRequest(name="f", arguments="{}"),
        CallRequest(name="f", arguments="{}"),
    )


def test_a_completion_may_be_a_refusal_or_have_no_message():
    assert text(parse_completion(completion(content=None, refusal="no")), "refusal") == "no"
    assert parse_completion(b'{"choices":[{"finish_reason":"content_filter"}]}')[-1].finish_reason == "content_filter"


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"choices":[]}', b"<html>", b"{", b"null", b"[" * 100_000])
def test_what_is_no_completion_is_a_protocol_error(body):
    with pytest.raises(ModelProtocolError):
        parse_completion(body)


def test_an_error_object_instead_of_a_completion_is_a_status_error():
    with pytest.raises(ModelStatusError, match="no luck"):
        parse_completion(b'{"error": {"message": "no luck"}}')
    with pytest.raises(ModelStatusError):
        parse_completion(completion(content="a").replace(b'"stop"', b'"error"'))


# Fuzz

SEED = (
    delta(role="assistant", content="")
    + delta(content="héllo")
    + delta(reasoning_content="x", reasoning_details=[{"a": 1}])
    + delta(tool_calls=[call("a", "f", '{"x"'), call("b", "g", "{}", 1)])
    + delta(tool_calls=[call(arguments=":1}")])
    + event(b'{"choices":[{"delta":{"content":"\\ud83d"}}],"x":NaN}')
    + b": ping\n\nevent: error\r\n"
    + event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    + STOP
    + DONE
)
WORDS = [
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"0",
    b"-1",
    b"true",
    b"NaN",
    b"\\ud800",
    b"\xff",
    b"\n\n",
    b"\r",
    b"data:",
    b'"',
]


def survives(body: bytes, size: int) -> None:
    """Only our errors come out, and the pieces do not matter."""
    outcomes = []
    for pieces in ([body], [body[at : at + size] for at in range(0, len(body), size)]):
        parser = ChatStreamParser("acme")
        chunks = [chunk for piece in pieces for chunk in parser.feed(piece)]
        try:
            chunks += parser.finish()
            ending: object = chunks[-1]
        except ModelError as error:
            ending = (type(error), str(error))
        outcomes.append((text(chunks), text(chunks, "reasoning"), sum(chunk.count for chunk in chunks), ending))
    assert outcomes[0] == outcomes[1]


@given(st.binary(max_size=300), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_random_bytes_raise_nothing_but_our_errors(body, size):
    survives(body, size)
    survives(event(body), size)


@given(
    st.lists(st.tuples(st.integers(0, len(SEED)), st.integers(0, 12), st.sampled_from(WORDS)), min_size=1, max_size=6),
    st.integers(1, 40),
)
@settings(max_examples=500, deadline=None)
def test_a_mutated_stream_raises_nothing_but_our_errors(edits, size):
    body = SEED
    for at, removed, added in edits:
        body = body[:at] + added + body[at + removed :]
    survives(body, size)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["content", "reasoning", "reasoning_content", "reasoning_details", "refusal", "tool_calls", "function_call"]


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, json_values)),
    st.fixed_dictionaries({}, optional={"usage": json_values, "error": json_values, "x_groq": json_values}),
    st.fixed_dictionaries({}, optional={"index": json_values, "finish_reason": json_values, "error": json_values}),
)
@settings(max_examples=500, deadline=None)
def test_any_json_in_any_field_raises_nothing_but_our_errors(fields, beside, choice):
    survives(event({"choices": [choice | {"delta": fields}], **beside}) + STOP, 11)
    try:
        parse_completion(json.dumps({"choices": [choice | {"message": fields}], **beside}).encode())
    except ModelError:
        return


def test_the_usual_delta_is_decoded_without_a_second_reader(monkeypatch):
    monkeypatch.setattr(parsing.json, "loads", None)
    assert text(read(delta(content="a") + STOP + DONE)) == "a"
