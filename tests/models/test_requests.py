import json

import pytest

from agentflow.errors import ConfigError, ModelError
from agentflow.messages import ImagePart, Message, TextPart, ToolCall, ToolSpec
from agentflow.models.base import ModelRequest
from agentflow.models.requests import chat_body, ollama_body, signed, strict_tools
from agentflow.settings import Profile

USER = Message(role="user", content="hello")
LOOK = ToolSpec(
    name="look",
    description="Looks.",
    parameters={"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}, "required": ["a"]},
)
FREE = ToolSpec(name="free", description="", parameters={"type": "object", "additionalProperties": True})


def body(profile=None, *, messages=(USER,), stream=False, **fields):
    profile = Profile(**(profile or {}))
    request = ModelRequest(messages=tuple(messages), **fields)
    return chat_body(request, profile, model="m", provider="acme", stream=stream, strict=strict_tools(request, profile))


def messages(profile=None, *said, **fields):
    return body(profile, messages=said, **fields)["messages"]


def asks(*ids, **fields):
    calls = tuple(ToolCall(call_id=id, name="look", raw_arguments="{}") for id in ids)  # noqa: A001
    return Message(role="assistant", tool_calls=calls, **fields)


def result(call_id):
    return Message(role="tool", content="[success]", call_id=call_id, name="look")


def test_every_field_has_its_name_and_only_what_is_set_is_sent():
    assert body() == {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    said = body(temperature=0.0, max_tokens=5, seed=7, stop=("A", "B"), extra_body={"top_k": 3, "temperature": 1})
    assert said == body() | {"temperature": 1, "max_tokens": 5, "seed": 7, "stop": ["A", "B"], "top_k": 3}
    renamed = body({"max_tokens_field": "limit", "seed_field": "random_seed"}, max_tokens=5, seed=7)
    assert renamed == body() | {"limit": 5, "random_seed": 7}


def test_what_an_endpoint_does_not_accept_is_left_out():
    profile = {"temperature": False, "stream_options": False, "parallel_tool_calls": False}
    said = body(profile, temperature=1.0, parallel_tool_calls=True, tools=(LOOK,), stream=True)
    assert said.keys() == {"model", "messages", "tools", "stream"}


def test_tools_their_choice_and_whether_they_may_be_parallel():
    said = body(tools=(LOOK,), tool_choice="required", parallel_tool_calls=False)
    assert (said["tool_choice"], said["parallel_tool_calls"]) == ("required", False)
    assert body(tools=(LOOK,), tool_choice="look")["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert body(tool_choice="none", parallel_tool_calls=True) == body(), "without tools neither means anything"


def test_strict_schemas_are_only_for_the_wire_and_only_where_they_fit():
    said = body({"strict_tools": True}, tools=(LOOK, FREE))
    look, free = (tool["function"] for tool in said["tools"])
    assert look["strict"] is True
    assert look["parameters"]["required"] == ["a", "n"]
    assert (free["parameters"], "strict" in free) == (FREE.parameters, False)
    assert LOOK.parameters["required"] == ["a"]
    assert "strict" not in body(tools=(LOOK,))["tools"][0]["function"]


@pytest.mark.parametrize(("profile", "content"), [("null", None), ("text", "")])
def test_a_message_with_only_calls_has_the_content_that_is_wanted(profile, content):
    said = messages({"empty_content": profile}, USER, asks("a"), result("a"), Message(role="assistant"), USER)
    assert said[1]["content"] == content
    assert said[3] == {"role": "assistant", "content": ""}, "without calls it is never null"
    assert messages({"empty_content": profile}, USER, asks("a", content="x"), result("a"))[1]["content"] == "x"


@pytest.mark.parametrize(
    ("rule", "id", "sent"),
    [
        ("any", "functions.add:0", "functions.add:0"),
        ("short", "call_1", "call_1"),
        ("nine", "D9WYdiHxV", "D9WYdiHxV"),
    ],
)
def test_an_id_that_is_accepted_stays_as_it_is(rule, id, sent):  # noqa: A002  the wire's name
    call, answer = messages({"call_ids": rule}, USER, asks(id), result(id))[1:]
    assert call["tool_calls"][0]["id"] == answer["tool_call_id"] == sent


@pytest.mark.parametrize(("rule", "length"), [("short", 24), ("nine", 9)])
def test_other_ids_are_mapped_the_same_in_call_and_result_and_differ(rule, length):
    ids = ["functions.add:0", "x" * 41, "ü", ""]
    said = messages({"call_ids": rule}, USER, asks(*ids), *map(result, ids))
    sent = [call["id"] for call in said[1]["tool_calls"]]
    assert sent == [message["tool_call_id"] for message in said[2:]]
    assert len(set(sent)) == len(ids)
    assert all(len(id) == length and id.isascii() and id.isalnum() for id in sent)  # noqa: A001
    assert sent == [call["id"] for call in messages({"call_ids": rule}, asks(*ids), *map(result, ids))[0]["tool_calls"]]


DATA = {"reasoning_content": "hm", "reasoning_details": [{"signature": "s"}], "role": "system", "other": 1}
GAVE = signed(DATA, "acme")


@pytest.mark.parametrize(
    ("rule", "sent"),
    [
        ("never", [None, None, None, None]),
        ("given", ["hm", None, None, "hm"]),
        ("loop", [None, None, None, "hm"]),
        ("always", ["hm", "", None, "hm"]),
    ],
)
def test_reasoning_goes_back_beside_the_calls_that_the_rule_names(rule, sent):
    said = messages(
        {"reasoning_content": rule},
        USER,
        asks("a", provider_data=GAVE),
        result("a"),
        asks("b", reasoning="of another provider"),
        result("b"),
        Message(role="assistant", content="done", provider_data=GAVE),
        USER,
        asks("c", provider_data=GAVE),
        result("c"),
    )
    assert [message.get("reasoning_content") for message in said if message["role"] == "assistant"] == sent


def test_reasoning_details_go_back_verbatim_or_not_at_all_and_nothing_else_does():
    said = messages(None, Message(role="assistant", content="x", provider_data=GAVE))
    assert said == [{"role": "assistant", "content": "x", "reasoning_details": [{"signature": "s"}]}]
    said = messages({"reasoning_details": False}, Message(role="assistant", content="x", provider_data=GAVE))
    assert said == [{"role": "assistant", "content": "x"}]


@pytest.mark.parametrize("foreign", [signed(DATA, "other"), DATA, DATA | {"provider": None}, None])
def test_reasoning_goes_to_nobody_but_the_provider_that_sent_it(foreign):
    given = asks("a", reasoning="hm", provider_data=foreign)
    profile = {"reasoning_content": "given"}
    assert not {"reasoning_content", "reasoning_details"} & messages(profile, USER, given, result("a"))[1].keys()
    for data, shown in ((foreign, None), (signed(None, "acme"), "hm")):
        request = ModelRequest(messages=(USER, asks("a", reasoning="hm", provider_data=data), result("a")))
        body = ollama_body(request, Profile(reasoning_content="loop"), model="m", provider="acme", stream=True)
        assert body["messages"][1].get("thinking") == shown
        assert "acme" not in json.dumps(body)


def test_system_and_developer_messages_have_the_role_that_is_known():
    said = (Message(role="system", content="a"), Message(role="developer", content="b"))
    assert [message["role"] for message in messages(None, *said)] == ["system", "system"]
    assert [message["role"] for message in messages({"developer_role": True}, *said)] == ["system", "developer"]


def test_pictures_are_sent_by_url_or_as_their_data():
    parts = (TextPart("what \ud83d"), ImagePart(url="http://h/x"), ImagePart(data=b"\x89P", media_type="image/png"))
    assert messages(None, Message(role="user", content=parts))[0]["content"] == [
        {"type": "text", "text": "what \ufffd"},
        {"type": "image_url", "image_url": {"url": "http://h/x"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVA="}},
    ]


SCHEMA = {"title": "My answer", "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def test_the_schema_of_an_answer_goes_where_it_is_accepted():
    described = body(response_format=SCHEMA)["response_format"]
    assert described == {"type": "json_schema", "json_schema": {"name": "My_answer", "schema": SCHEMA}}
    strict = body({"strict_tools": True}, response_format=SCHEMA)["response_format"]["json_schema"]
    assert (strict["strict"], strict["schema"]["additionalProperties"]) == (True, False)
    optional = SCHEMA | {"required": []}
    loose = body({"strict_tools": True}, response_format=optional)["response_format"]["json_schema"]
    assert loose == {"name": "My_answer", "schema": optional}


@pytest.mark.parametrize("accepted", ["json_object", "none"])
def test_elsewhere_the_system_message_tells_it(accepted):
    profile = {"structured_output": accepted}
    said = body(profile, messages=(Message(role="system", content="Be brief."), USER), response_format=SCHEMA)
    assert said["messages"][0]["content"].startswith("Be brief.\n\nAnswer with nothing but a JSON object")
    assert json.dumps(SCHEMA) in said["messages"][0]["content"]
    assert said.get("response_format") == ({"type": "json_object"} if accepted == "json_object" else None)
    alone = body(profile, response_format=SCHEMA)["messages"]
    assert [message["role"] for message in alone] == ["system", "user"]


@pytest.mark.parametrize("make", [chat_body, ollama_body])
def test_what_no_request_can_ask_is_refused(make):
    options = {"model": "m", "provider": "acme", "stream": True} | ({"strict": {}} if make is chat_body else {})
    for name in ("model", "messages", "stream"):
        with pytest.raises(ConfigError, match=f"extra_body has '{name}', which the request itself says"):
            make(ModelRequest(messages=(USER,), extra_body={name: 1}), Profile(), **options)
    with pytest.raises(ConfigError, match=r"tool_choice 'x' is none of auto, none, required and no tool.*\['look'\]"):
        make(ModelRequest(messages=(USER,), tools=(LOOK,), tool_choice="x"), Profile(), **options)
    with pytest.raises(ModelError, match="not paired and was not sent"):
        make(ModelRequest(messages=(USER, asks("a"))), Profile(), **options)
