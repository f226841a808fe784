import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import ModelError, ModelProtocolError, ModelRateLimitError, ModelStatusError, ModelTruncatedError
from agentflow.messages import Usage
from agentflow.models import framing
from agentflow.models.base import CallRequest, ModelChunk
from agentflow.models.ollama_parsing import OllamaStreamParser


def line(**fields) -> bytes:
    return (
        json.dumps({"model": "m", "created_at": "2026-01-01T00:00:00Z"} | fields, ensure_ascii=False).encode() + b"\n"
    )


def says(done=False, **message) -> bytes:
    return line(message={"role": "assistant", "content": ""} | message, done=done)


def end(reason="stop", **fields) -> bytes:
    return line(message={"role": "assistant", "content": ""}, done=True, done_reason=reason, **fields)


def call(name, arguments, **fields) -> dict:
    return {"function": {"name": name, "arguments": arguments}} | fields


def read(*pieces: bytes) -> list[ModelChunk]:
    parser = OllamaStreamParser("acme")
    return [*(chunk for piece in pieces for chunk in parser.feed(piece)), *parser.finish()]


def text(chunks, channel="text") -> str:
    return "".join(getattr(chunk, channel) for chunk in chunks)


def test_thinking_text_and_usage():
    body = says(thinking="hm") + says(content="a") + says(content="b") + end(prompt_eval_count=3, eval_count=4)
    assert read(body) == [
        ModelChunk(reasoning="hm"),
        ModelChunk(text="ab", count=2),
        ModelChunk(finish_reason="stop", usage=Usage(input_tokens=3, output_tokens=4), count=0),
    ]


def test_calls_over_several_lines_and_in_the_last_one_keep_their_order():
    first = says(tool_calls=[call("f", {"x": "北京"}, id="call_1"), call("f", {"x": 2})])
    last = line(message={"content": "", "tool_calls": [call("g", {})]}, done=True, done_reason="stop")
    assert read(first, last)[-1].calls == (
        CallRequest(id="call_1", name="f", arguments='{"x": "北京"}'),
        CallRequest(name="f", arguments='{"x": 2}'),
        CallRequest(name="g", arguments="{}"),
    )


def test_arguments_leave_as_they_came_so_that_a_key_given_twice_is_seen():
    twice = b'{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"x": 1,"x": 2}}}]},"done":true}\n'
    assert read(twice)[-1].calls[0].arguments == '{"x": 1,"x": 2}'
    with pytest.raises(ModelProtocolError, match="no part of a chat"):
        read(twice.replace(b"2", b"NaN"))
    nested = {"arguments": {"function": {"arguments": float("nan")}}}
    assert read(says(tool_calls=[call("f", nested)]) + end())[-1].calls[0].arguments == (
        '{"arguments":{"function":{"arguments":NaN}}}'
    )


def test_a_reply_that_was_not_streamed_is_one_line():
    body = line(message={"content": "a", "thinking": "t"}, done=True, done_reason="length", eval_count=2)
    chunks = read(body.strip())
    assert (text(chunks), text(chunks, "reasoning"), chunks[-1].finish_reason) == ("a", "t", "length")
    assert chunks[-1].usage == Usage(output_tokens=2)


def test_missing_usage_is_unknown():
    assert read(end())[-1].usage is None
    assert read(end(prompt_eval_count=None, eval_count="4"))[-1].usage is None


def test_without_a_line_that_is_done_a_reply_is_cut():
    for body in (b"", says(content="a"), says(content="a") + end().strip()[:-1], b'{"done": false}\n', b"{}\n"):
        parser = OllamaStreamParser("acme")
        parser.feed(body)
        assert not parser.complete
        with pytest.raises(ModelTruncatedError, match="'acme' ended the reply without saying that it is done"):
            parser.finish()


def test_nothing_is_read_after_the_done_line():
    parser = OllamaStreamParser("acme")
    assert text(parser.feed(says(content="a") + end() + says(content="b") + b"{broken\n")) == "a"
    assert parser.ended
    assert parser.complete
    assert parser.finish()[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ("model runner has unexpectedly stopped", ModelStatusError, "model runner has unexpectedly stopped"),
        ({"message": "slow down", "code": 429}, ModelRateLimitError, "slow down"),
    ],
)
def test_an_error_in_the_stream_ends_the_reply_after_its_text(error, kind, words):
    parser = OllamaStreamParser("acme")
    assert text(parser.feed(says(content="a") + line(error=error))) == "a"
    assert parser.ended
    assert not parser.complete
    with pytest.raises(kind, match=f"'acme' failed while it answered: {words}"):
        parser.finish()


@pytest.mark.parametrize("body", [b"<html></html>\n", b"null\n", b"[]\n", b'{"message": 1}\n', b"[" * 100_000 + b"\n"])
def test_other_lines_are_protocol_errors(body):
    with pytest.raises(ModelProtocolError, match="'acme' sent a line that is no part of a chat"):
        read(body + end())


def test_a_line_over_the_bound_ends_the_reply(monkeypatch):
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 100)
    with pytest.raises(ModelProtocolError, match="line of more than"):
        read(says(content="x" * 200) + end())


def test_halves_of_a_character_meet_over_lines():
    halves = [b'{"message":{"content":"%s"},"x":NaN}\n' % half for half in (b"a\\ud83d", b"\\ude00b")]
    assert text(read(*halves, end())) == "a😀b"


def test_empty_lines_and_other_line_ends_change_nothing():
    body = says(content="é\u2028") + b"\n\r\n" + end().replace(b"\n", b"\r\n")
    for at in range(len(body) + 1):
        assert text(read(body[:at], body[at:])) == "é\u2028"


WHOLE = says(thinking="hm") + says(content="héllo") + says(tool_calls=[call("f", {"x": [1, "}"]})]) + end(eval_count=1)


def test_a_cut_at_any_byte_is_truncated_until_the_done_line_is_whole():
    whole = len(WHOLE) - 1  # its line end does not matter
    for at in range(len(WHOLE) + 1):
        parser = OllamaStreamParser("acme")
        chunks = parser.feed(WHOLE[:at])
        assert "héllo".startswith(text(chunks))
        if at < whole:
            with pytest.raises(ModelTruncatedError):
                parser.finish()
        else:
            assert parser.finish()[-1].calls == (CallRequest(name="f", arguments='{"x": [1, "}"]}'),)


PIECES = st.lists(st.sampled_from([b"{", b"}", b"\n", b'"', b"[]", b"null", b'"error":', b"\\ud83d", b"\xff", WHOLE]))


@given(PIECES, st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_whatever_comes_the_pieces_do_not_matter_and_only_our_errors_come_out(parts, size):
    body = b"".join(parts)
    outcomes = []
    for pieces in ([body], [body[at : at + size] for at in range(0, len(body), size)]):
        parser = OllamaStreamParser("acme")
        chunks = [chunk for piece in pieces for chunk in parser.feed(piece)]
        try:
            chunks += parser.finish()
            ending: object = chunks[-1]
        except ModelError as error:
            ending = (type(error), str(error))
        outcomes.append((text(chunks), text(chunks, "reasoning"), sum(chunk.count for chunk in chunks), ending))
    assert outcomes[0] == outcomes[1]
