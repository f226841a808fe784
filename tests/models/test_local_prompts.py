import json

import pytest

from agentflow.errors import ModelProtocolError
from agentflow.messages import Message, ToolCall, ToolSpec
from agentflow.models.base import CallRequest
from agentflow.models.local_prompts import (
    MAX_SHOTS,
    chat_prompt,
    decision_grammar,
    decision_prompt,
    example_arguments,
    read_decision,
    result_prompt,
)


def tool(name="calculator", description="Evaluate an expression.", examples=(), **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolSpec(name=name, description=description, parameters=schema, examples=examples)


CALCULATOR = tool(examples=({"expression": "2+3*4"},), expression={"type": "string"})
WEATHER = tool("weather", "Get the weather of a city.", ({"city": "Berlin"}, {"city": "Oslo"}), city={"type": "string"})


def shots(prompt):
    """The example questions with their answers, without the system message and the real question."""
    texts = [message["content"] for message in prompt[1:-1]]
    return list(zip(texts[::2], texts[1::2], strict=True))


def test_the_examples_most_like_the_question_stand_last():
    weather_last = shots(decision_prompt("How is the weather?", (CALCULATOR, WEATHER)))
    calculator_last = shots(decision_prompt("What is 17*23?", (CALCULATOR, WEATHER)))

    assert weather_last[-1] == ("Get the weather of Oslo", '{"tool": "weather", "arguments": {"city": "Oslo"}}')
    assert calculator_last[-1] == (
        "Evaluate 2+3*4",
        '{"tool": "calculator", "arguments": {"expression": "2+3*4"}}',
    )


def test_a_question_like_no_tool_sees_examples_without_a_tool_last():
    answers = [answer for _, answer in shots(decision_prompt("Hello!", (CALCULATOR, WEATHER)))]

    assert answers[-1] == '{"tool": null}'
    assert len(answers) == MAX_SHOTS


def test_many_tools_do_not_make_the_prompt_longer():
    tools = [tool(f"tool_{number}", "Do a thing.", ({"x": number},), x={"type": "integer"}) for number in range(50)]

    assert len(shots(decision_prompt("Do a thing", tools))) == MAX_SHOTS


def test_an_argument_takes_the_place_of_its_name_in_the_question():
    order = tool("order", "Look up one order.\n\nMore text.", ({"order_id": "ORD1"},), order_id={"type": "string"})
    zone = tool("clock", "Tell the time in a time zone.", ({"timezone": "America/New_York"},), timezone={})
    nothing = tool("ping", "Ping the server.")
    two = tool("add", "Add a number to another.", ({"number": 1, "other": [2]},), number={}, other={})

    assert [shots(decision_prompt(spec.description, (spec,)))[-1][0] for spec in (order, zone, nothing, two)] == [
        "Look up one order: ORD1",
        "Tell the time in New York",
        "Ping the server",
        "Add 1 to another, [2]",
    ]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "examples": ["a", "b"]}, "a"),
        ({"enum": ["red", "blue"]}, "red"),
        ({"type": "string", "description": "A zone, e.g. Europe/Paris.", "default": "UTC"}, "Europe/Paris"),
        ({"type": "string", "default": "UTC"}, "UTC"),
        ({"const": 7}, 7),
        ({"type": "integer"}, 1),
        ({"type": "number"}, 1.5),
        ({"type": "boolean"}, True),
        ({"type": "array"}, []),
        ({"type": "object"}, {}),
        ({"type": "string"}, "the name"),
        (True, "the_name"),
    ],
)
def test_arguments_are_made_up_from_the_schema(schema, value):
    assert example_arguments({"properties": {"the_name": schema}, "required": ["the_name"]}) == {"the_name": value}


def test_optional_arguments_are_made_up_only_if_none_is_required():
    properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}

    assert example_arguments({"properties": properties, "required": ["b"]}) == {"b": 1}
    assert example_arguments({"properties": properties}) == {"a": 1}
    assert example_arguments({}) == {}


def schema_in(grammar):
    return json.loads(next(line for line in grammar.splitlines() if "%json" in line).partition("%json ")[2])


def test_the_grammar_offers_every_tool_and_none():
    grammar = decision_grammar((CALCULATOR, WEATHER))

    assert grammar.startswith("%llguidance {}\n")
    assert grammar.endswith("start: none | call_0 | call_1")
    assert r'call_1: "{\"tool\": \"weather\", \"arguments\": " arguments_1 "}"' in grammar


def test_keywords_that_the_engine_might_not_know_are_left_to_the_tools_validation():
    nested = {"anyOf": [{"type": "string", "pattern": "(?=x)", "title": "T"}, {"$ref": "#/$defs/P"}]}
    spec = ToolSpec(
        name="t",
        description="",
        parameters={
            "properties": {"title": nested, "kind": {"enum": [{"format": "kept"}]}},
            "$defs": {"P": {"type": "object", "properties": {"n": {"type": "integer", "format": "int32"}}}},
            "if": {},
        },
    )

    schema = schema_in(decision_grammar((spec,)))

    assert schema["properties"]["title"] == {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/P"}]}
    assert schema["properties"]["kind"] == {"enum": [{"format": "kept"}]}
    assert schema["$defs"]["P"] == {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert schema["type"] == "object"
    assert "if" not in schema


def test_a_decision_gives_the_exact_text_of_the_arguments():
    assert read_decision('{"tool": "t", "arguments": {"a": {"b": 1.50}}}') == CallRequest(
        name="t", arguments='{"a": {"b": 1.50}}'
    )
    assert read_decision('{"tool": null}') is None


def test_a_decision_that_was_cut_gives_arguments_that_are_cut():
    assert read_decision('{"tool": "t", "arguments": {"a": "x') == CallRequest(name="t", arguments='{"a": "x')


def test_anything_else_is_no_decision():
    with pytest.raises(ModelProtocolError, match="wrote 'I am sorry'"):
        read_decision("I am sorry")


def test_results_are_shown_without_their_status_line_and_objects_as_pairs():
    prompt = result_prompt(
        "Where is it?", ["[success]\n14", '[success]\n{"status": "sent", "eta": 5}', "[timeout]", "x"]
    )

    assert prompt[-1]["content"] == (
        "Question: Where is it?\nResult: 14; status: sent, eta: 5; [timeout]; x\n"
        "Answer in one sentence with the result."
    )


def test_brackets_within_a_result_are_no_status_line():
    assert "Result: see [error: 5] there\n" in result_prompt("?", ["see [error: 5] there"])[-1]["content"]


def test_if_all_tools_failed_the_model_is_asked_to_say_so():
    prompt = result_prompt("What is 5/0?", ["[error: failed]\ndivision by zero", "[rejected]\nnot allowed"])

    assert prompt[-1]["content"] == (
        "Question: What is 5/0?\nFailure: division by zero; not allowed\nSay in one sentence what failed."
    )


def test_a_huge_result_is_cut():
    assert len(result_prompt("?", ["x" * 100_000])[-1]["content"]) < 3000


def test_a_chat_keeps_instructions_and_leaves_tool_rounds_out():
    history = (
        Message(role="system", content="Be kind."),
        Message(role="user", content="2+2?"),
        Message(role="assistant", tool_calls=(ToolCall(call_id="1", name="calculator", raw_arguments="{}"),)),
        Message(role="tool", call_id="1", content="4"),
        Message(role="assistant", content="It is 4."),
        Message(role="user", content="Thanks!"),
    )

    prompt = chat_prompt(history, 1000)

    assert prompt[0] == {"role": "system", "content": "Be kind."}
    assert [message["content"] for message in prompt[-3:]] == ["2+2?", "It is 4.", "Thanks!"]


def test_the_oldest_turns_give_way_and_an_answer_never_stands_without_its_question():
    turns = [
        Message(role=role, content=f"{role} {n} " + "x" * 100) for n in range(20) for role in ("user", "assistant")
    ]
    prompt = chat_prompt((Message(role="system", content="S"), *turns, Message(role="user", content="last")), 700)

    kept = prompt[5:]
    assert prompt[0]["content"] == "S"
    assert kept[-1]["content"] == "last"
    assert kept[0]["role"] == "user"
    assert 3 <= len(kept) < 20


def test_the_last_message_stays_even_if_it_is_too_long():
    prompt = chat_prompt((Message(role="user", content="x" * 100_000),), 100)

    assert len(prompt[-1]["content"]) == 100_000
