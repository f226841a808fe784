import pytest

from agentflow.testing.wire import ollama_refusal, refusal

USER = {"role": "user", "content": "hi"}


def call(call_id="c1", name="add", arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls, **fields):
    return {"role": "assistant", "content": None, "tool_calls": list(calls)} | fields


def answers(call_id="c1"):
    return {"role": "tool", "tool_call_id": call_id, "content": "3"}


def request(*messages, **fields):
    return {"model": "m", "messages": list(messages)} | fields


GOOD = [
    request(USER),
    request({"role": "developer", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}),
    request(USER, asks(call()), answers(), {"role": "assistant", "content": ""}, USER),
    request(USER, asks(call("a"), call("b")), answers("b"), answers("a")),
    request(USER, stream=True, stream_options={"include_usage": True}),
    request(USER, tools=[{"type": "function", "function": {"name": "add", "parameters": {}}}]),
]


@pytest.mark.parametrize("body", GOOD)
def test_a_proper_request_is_accepted(body):
    assert refusal(body) is None


def tools(*names):
    return [{"type": "function", "function": {"name": name}} for name in names]


BAD = [
    (None, "JSON object"),
    (request(), "non-empty array"),
    ({"messages": [USER]}, "'model'"),
    (request(USER, stream_options={}), "'stream_options'"),
    (request(USER, tools=[]), "'tools'"),
    (request(USER, tools=tools("a b")), "'a b' does not match"),
    (request(USER, tools=tools("a" * 65)), "does not match"),
    (request(USER, tools=tools("a", "a")), "not unique"),
    (request(USER, tools=[{"function": {"name": "a", "parameters": []}}]), "'parameters'"),
    (request({"role": "robot", "content": ""}), "a role out of"),
    (request("hi"), "a role out of"),
    (request({"role": "user"}), "'content' is missing"),
    (request({"role": "assistant", "content": None}), "only beside tool calls"),
    (request({"role": "user", "content": 5}), "a string or an array"),
    (request(USER, {"role": "tool", "content": ""}), "'tool_call_id'"),
    (request(USER, asks(content="")), "non-empty array of an assistant"),
    (request(USER | {"tool_calls": [call()]}), "non-empty array of an assistant"),
    (request(USER, asks(call("")), answers("")), "'id'"),
    (request(USER, asks(call(name="a b")), answers()), "does not match"),
    (request(USER, asks(call(arguments={})), answers()), "'arguments'"),
    (request(USER, asks(call(arguments="")), answers()), "'arguments'"),
    (request(USER, asks(call(arguments='{"a"')), answers()), "'arguments'"),
    (request(USER, asks(call())), "calls without a result"),
    (request(USER, asks(call()), USER, answers()), "calls without a result"),
    (request(USER, asks(call()), answers(), answers()), "not an open call"),
    (request(USER, answers()), "not an open call"),
    (request(USER, asks(call(), call()), answers()), "used before"),
    (request(USER, asks(call()), answers(), asks(call()), answers()), "used before"),
]


@pytest.mark.parametrize(("body", "reason"), BAD)
def test_a_broken_rule_is_named(body, reason):
    assert reason in refusal(body)


def ollama_call(arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}


def test_ollama_takes_objects_as_arguments_and_results_by_name():
    history = (USER, ollama_call({"a": 1}), {"role": "tool", "tool_name": "add", "content": "3"})
    assert ollama_refusal(request(*history)) is None
    assert ollama_refusal(request({"role": "user", "content": "x", "images": ["iVBO"]})) is None


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ([], "must be a JSON object"),
        ({"model": "m"}, "must be a JSON object with an array"),
        (request(USER, model=""), "'model' must be"),
        (request({"role": "assistant", "content": None}), "'content' must be a string"),
        (request({"role": "user", "content": [{"type": "text", "text": "x"}]}), "'content' must be a string"),
        (request(ollama_call("{}")), "'arguments' of a call must be an object"),
        (request({"role": "tool", "content": "3"}), "needs 'tool_name'"),
        (request({"role": "user", "content": "x", "images": ["http://h/x.png"]}), "'images' must be base64"),
    ],
)
def test_what_ollama_refuses_is_named(body, fault):
    assert fault in ollama_refusal(body)
