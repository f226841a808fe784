import pytest

from agentflow.events import (
    CancelledEvent,
    FailedEvent,
    FinalEvent,
    ModelCompleteEvent,
    ModelStartEvent,
    RunError,
    ToolCompleteEvent,
    ToolErrorEvent,
    ToolStartEvent,
)
from agentflow.messages import Usage
from agentflow.models.base import ModelRequest
from agentflow.models.openai import OpenAIModel
from agentflow.observability import spans
from agentflow.testing import ScriptedModel
from agentflow.tools import ToolRegistry, tool
from tests.builders import USAGE, make, model_complete, model_start, tool_complete, tool_error, tool_start


def test_times_are_exact_to_the_microsecond():
    assert spans.nanoseconds("1970-01-01T00:00:01.000001Z") == 1_000_001_000
    assert spans.nanoseconds("2026-12-01T01:02:03.123456Z") % 10**9 == 123_456_000


def test_a_model_call_has_the_names_of_the_conventions_at_its_start():
    event = make(ModelStartEvent, provider="mistral", model="m", messages=1, input_tokens_estimate=1)

    assert spans.of_chat(event) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mistral_ai",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.agent.name": "agent",
        "gen_ai.conversation.id": "s",
        "agentflow.iteration": 1,
    }
    assert spans.of_chat(model_start())["gen_ai.provider.name"] == "p"


@pytest.mark.parametrize(
    ("base_url", "address"),
    [
        ("http://127.0.0.1:8000/v1", ("127.0.0.1", 8000)),
        ("https://models.example.org", ("models.example.org", 443)),
    ],
)
def test_a_model_call_tells_where_the_model_is(base_url, address):
    models = (ScriptedModel(), OpenAIModel("m", provider="p", base_url=base_url))

    attributes = spans.of_chat(model_start(), models)
    assert (attributes["server.address"], attributes["server.port"]) == address
    assert "server.address" not in spans.of_chat(model_start(), models[:1])


def test_a_tool_call_tells_what_the_tool_is_for():
    @tool
    def look() -> str:
        """Look around."""
        return ""

    attributes = spans.of_tool(tool_start("c"), ToolRegistry([look]).get("look"))
    assert attributes["gen_ai.tool.description"] == "Look around."
    assert "gen_ai.tool.description" not in spans.of_tool(tool_start("c"))


def test_a_request_tells_what_is_set_and_no_more():
    assert spans.of_request(ModelRequest(messages=())) == {"gen_ai.output.type": "text"}
    request = ModelRequest(messages=(), temperature=0.0, max_tokens=5, seed=1, stop=("x",), response_format={})
    assert spans.of_request(request) == {
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.seed": 1,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.output.type": "json",
    }


def test_a_reply_tells_tokens_reason_and_the_first_chunk_in_seconds():
    usage = Usage(input_tokens=3, output_tokens=2, estimated=True)
    event = make(ModelCompleteEvent, usage=usage, duration_ms=9.0, first_chunk_ms=250.0, finish_reason="stop")

    assert spans.of_reply(event) == {
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "agentflow.usage.estimated": True,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 0.25,
    }
    assert "agentflow.usage.estimated" not in spans.of_reply(model_complete())


def test_a_tool_call_has_a_digest_of_its_arguments_whatever_their_order():
    def digest(arguments):
        event = make(ToolStartEvent, call_id="c", tool="look", arguments=arguments, raw_arguments="")
        return spans.of_tool(event).get("agentflow.tool.arguments.digest")

    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1})
    assert len(digest({})) == 16
    assert digest(None) is None
    assert spans.of_tool(tool_start("c1"))["gen_ai.tool.call.id"] == "c1"


def test_a_name_that_a_model_has_made_up_is_cut():
    event = make(ToolStartEvent, call_id="c", tool="x" * 5000, arguments=None, raw_arguments="")

    assert spans.of_tool(event)["gen_ai.tool.name"] == spans.tool_name(event) == "x" * 100


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"a": 1}', "object"),
        ("[1]", "array"),
        ("5", "number"),
        ("1.5", "number"),
        ("true", "boolean"),
        ("null", "null"),
        ("plain words", "string"),
        ("", "string"),
        ("[" * 100_000, "string"),
    ],
)
def test_a_result_tells_its_type(text, kind):
    event = tool_complete("c", result=f"[success]\n{text}")

    assert spans.of_result(event)["agentflow.tool.result.type"] == kind


def test_a_reused_result_names_the_call_that_gave_it():
    event = make(ToolCompleteEvent, call_id="c", tool="look", result="[success]\n", duration_ms=1500.0, reused_from="b")

    attributes = spans.of_result(event)
    assert attributes["agentflow.tool.reused_from"] == "b"
    assert attributes["agentflow.tool.duration"] == 1.5


def test_a_failed_call_has_an_error_type_of_few_values():
    failure = tool_error("c")
    assert (failure.error.kind, spans.error_of(failure)) == ("x", "x")
    assert spans.error_of(tool_error("c", status="timeout")) == "timeout"
    assert spans.error_of(tool_error("c", status="cancelled")) is None
    assert spans.error_of(tool_complete("c")) is None
    assert isinstance(failure, ToolErrorEvent)


@pytest.mark.parametrize(
    ("kind", "fields", "outcome", "error"),
    [
        (FinalEvent, {"text": "x", "finish_reason": "stop", "iterations": 1}, "completed", None),
        (FailedEvent, {"error": RunError(kind="limit", message="words")}, "failed", "limit"),
        (CancelledEvent, {"reason": "user"}, "cancelled", None),
        (CancelledEvent, {"reason": "timeout"}, "cancelled", "timeout"),
    ],
)
def test_a_run_tells_how_it_ended(kind, fields, outcome, error):
    attributes, told = spans.of_end(make(kind, usage=USAGE, duration_ms=1.0, **fields))

    assert (attributes["agentflow.outcome"], told) == (outcome, error)
    assert "words" not in str(attributes)


def test_content_is_cut_at_a_kibibyte_and_never_within_a_character():
    assert spans.cut("x" * 5000) == "x" * 1024
    assert spans.cut("x" + "ä" * 1000) == "x" + "ä" * 511
    assert spans.text_message("user", 'a "word"') == (
        '[{"role":"user","parts":[{"type":"text","content":"a \\"word\\""}]}]'
    )
    assert spans.reply_message("", model_complete("c1")) == (
        '[{"role":"assistant","parts":[{"type":"tool_call","id":"c1","name":"look","arguments":"{}"}]}]'
    )
