import pytest

from agentflow.models.finish import later_reason
from agentflow.models.ollama_parsing import OllamaStreamParser
from agentflow.models.parsing import ChatStreamParser


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("MaxTokens", "length"),
        ("Length", "length"),
        ("model_length", "length"),
        ("SAFETY", "content_filter"),
        ("content-filter", "content_filter"),
        ("contentFilter", "content_filter"),
        ("STOP", "stop"),
        ("toolCalls", "tool_calls"),
        ("ERROR", "error"),
        ("paused_by_Acme", "paused_by_Acme"),
        ("\ud800", "\ufffd"),
        ("", None),
        (None, None),
        (3, None),
        (["length"], None),
    ],
)
def test_a_known_reason_has_one_spelling_and_others_stay_as_they_came(given, reason):
    assert later_reason(None, given) == reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("stop", "length", ""), "length"),
        (("tool_calls", "stop"), "stop"),
        (("MAX_TOKENS", "tool_calls", "stop"), "length"),
        (("content_filter", "length"), "content_filter"),
        (("length", "error"), "error"),
        (("error", "stop"), "error"),
    ],
)
def test_the_last_reason_counts_but_a_cut_stays_a_cut(given, reason):
    seen = None
    for each in given:
        seen = later_reason(seen, each)
    assert seen == reason


def test_the_parsers_say_it_in_these_words():
    reasons = ("MAX_TOKENS", "tool_calls", "stop")
    events = b"".join(b'data: {"choices":[{"delta":{},"finish_reason":"%s"}]}\n\n' % word.encode() for word in reasons)
    line = b'{"message":{"content":"a"},"done":true,"done_reason":"Length"}\n'
    for parser, body in ((ChatStreamParser(), events), (OllamaStreamParser(), line)):
        parser.feed(body)
        assert parser.finish()[-1].finish_reason == "length"
