import json

import openai
import pytest
from aiohttp import web

from agentflow import Agent, tool
from agentflow.messages import unpaired
from agentflow.models.base import ModelChunk
from agentflow.stores.base import SessionKey
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ask_user
from agentflow.transports.app import drain
from tests.transports.served import Frames, Gate, listening, served, settled
from tests.transports.test_auth import bearer, made

CHAT = "/v1/chat/completions"
DONE = []


@tool
def order(item: str) -> str:
    """Order something."""
    DONE.append(item)
    return f"ordered {item}"


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    DONE.append(amount)
    return f"paid {amount}"


@pytest.fixture(autouse=True)
def nothing_done():
    DONE.clear()


class Listener:
    """A model that keeps what it is sent."""

    provider = name = "listener"

    def __init__(self):
        self.requests = []

    async def stream(self, request):
        self.requests.append(request)
        yield ModelChunk(text="Well.", finish_reason="stop")

    @property
    def heard(self):
        return [[(one.role, one.text) for one in request.messages] for request in self.requests]


def shop(*script, tools=(order,), **options):
    return Agent(name="shop", model=ScriptedModel(*script), tools=tools, **options)


def asked(*texts, model="agent", **fields):
    """A conversation in which user and assistant take turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts or ("hello",))]
    return {"model": model, "messages": messages, **fields}


async def refused(here, body, path=CHAT, **options):
    """The status and the error of an answer that says no, in OpenAI's form."""
    status, answer = await here.posted(path, body, **options)
    assert set(answer) == {"error"}, answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return status, answer["error"]


async def chunks(here, body, **options):
    """The chunks of a stream, without the mark at its end, which has to be there unless it failed."""
    async with here.post(CHAT, body | {"stream": True}, **options) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        frames = [one for one in (await response.text()).split("\n\n") if one]
    assert all(one.startswith("data: ") and "\n" not in one for one in frames)
    told = [one.removeprefix("data: ") for one in frames]
    if "error" not in json.loads(told[-1] if told[-1] != "[DONE]" else "{}"):
        assert told.pop() == "[DONE]"
    return [json.loads(one) for one in told]


def text_of(told):
    return "".join(one["choices"][0]["delta"].get("content", "") for one in told if one.get("choices"))


async def sessions(here):
    return (await here.json("/api/sessions"))[1]["sessions"]


async def test_the_whole_answer_has_the_full_shape():
    async with served() as here:
        status, body = await here.posted(CHAT, asked())
        assert status == 200
        assert body.pop("id").startswith("chatcmpl-")
        assert body.pop("created") > 1_700_000_000
        usage = body.pop("usage")
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
        message = {"role": "assistant", "content": "Hello there.", "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        assert body == {"object": "chat.completion", "model": "agent", "choices": [choice]}


async def test_a_stream_has_one_head_and_an_end():
    async with served() as here:
        told = await chunks(here, asked())
        assert len({(one["id"], one["created"], one["model"], one["object"]) for one in told}) == 1
        assert told[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
        assert text_of(told) == "Hello there."
        assert [one["choices"][0]["finish_reason"] for one in told] == [None] * (len(told) - 1) + ["stop"]
        assert all("usage" not in one for one in told)
        *rest, last = await chunks(here, asked(stream_options={"include_usage": True}))
        assert {one["usage"] for one in rest} == {None}
        assert (last["choices"], last["usage"]["total_tokens"] > 0) == ([], True)


async def test_the_messages_are_the_conversation_and_nothing_is_kept():
    model = Listener()
    async with served(Agent(model=model)) as here:
        body = asked("one", "two", "three")
        body["messages"].insert(0, {"role": "system", "content": "Be brief."})
        await here.posted(CHAT, body)
        assert model.heard == [[("user", "Be brief.\n\none"), ("assistant", "two"), ("user", "three")]]
        assert await sessions(here) == []
        await chunks(here, asked("else"))
        assert model.heard[1:] == [[("user", "else")]]
        assert await sessions(here) == []
        assert not await here.server.store.list_runs(open_only=True)


@pytest.mark.parametrize("count", [1, 10, 11, 12, 60])
async def test_a_long_conversation_is_shown_whole_and_costs_one_call(count):
    model = Listener()
    async with served(Agent(model=model)) as here:
        texts = [str(number) for number in range(2 * count + 1)]
        await here.posted(CHAT, asked(*texts))
        await settled()
        assert [[text for _, text in heard] for heard in model.heard] == [texts]


async def test_calls_in_the_history_are_shown_with_their_results():
    model = Listener()
    async with served(Agent(model=model)) as here:
        function = {"name": "f", "arguments": '{"a": 1}'}
        messages = [
            {"role": "user", "content": "one"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "done"}]},
            {"role": "assistant", "content": "It is done.", "refusal": None},
            {"role": "developer", "content": "Now:"},
            {"role": "user", "content": [{"type": "text", "text": "two"}]},
        ]
        await here.posted(CHAT, asked(messages=messages))
        assert [one.role for one in model.requests[0].messages] == ["user", "assistant", "tool", "assistant", "user"]
        assert model.requests[0].messages[1].tool_calls[0].raw_arguments == '{"a": 1}'
        assert model.heard[0][-1] == ("user", "Now:two")


CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "done"}
SAID = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    "history",
    [
        [CALLED],
        [RESULT],
        [SAID, CALLED],
        [SAID, RESULT],
        [SAID, RESULT, CALLED],
        [SAID, CALLED, RESULT, RESULT],
        [SAID, CALLED, CALLED, RESULT],
        [SAID, CALLED, {"role": "assistant", "content": "y"}, RESULT],
    ],
)
async def test_no_model_is_shown_calls_without_results_or_results_without_calls(history):
    model = Listener()
    async with served(Agent(model=model)) as here:
        status, _ = await here.posted(CHAT, asked(messages=[*history, SAID]))
        assert status == 200
        assert unpaired(model.requests[0].messages) is None
        assert model.requests[0].messages[-1].text == "x"


async def test_with_a_session_the_server_keeps_the_conversation():
    model = Listener()
    async with served(Agent(model=model)) as here:
        fields = {"metadata": {"session_id": "s1", "user_id": "ann", "more": "1"}}
        await here.posted(CHAT, asked("one", **fields))
        await chunks(here, asked("not", "looked at", "two", **fields))
        assert model.heard[1] == [("user", "one"), ("assistant", "Well."), ("user", "two")]
        turns = await here.server.store.read_turns(SessionKey("s1", "ann"), 0, 9)
        assert [turn.outcome for turn in turns] == ["final", "final"]
        (begun,) = await here.server.store.read(turns[0].run_id, 0, 1)
        assert begun.metadata == {"more": "1"}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_agent_does_is_not_told_but_what_it_says_is(stream):
    async with served(shop(["I order. ", call("order", item="tea")], "Tea is ordered.")) as here:
        body = asked("tea please", model="shop")
        if stream:
            told = await chunks(here, body)
            assert text_of(told) == "I order. \n\nTea is ordered."
            assert not any("tool_calls" in one["choices"][0]["delta"] for one in told)
        else:
            _, answer = await here.posted(CHAT, body)
            assert answer["choices"][0]["message"]["content"] == "Tea is ordered."
        assert DONE == ["tea"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "how", [{"model": "shop-raw"}, {"tool_choice": "none"}, {"tool_choice": "none", "tools": [{}]}]
)
async def test_a_request_for_a_title_has_no_effects(how, stream):
    model = Listener()
    agent = Agent(name="shop", model=model, instructions="You sell tea.", tools=[order], temperature=0.5)
    async with served(agent) as here:
        body = asked("Make a title.", **{"model": "shop"} | how)
        if stream:
            assert text_of(await chunks(here, body)) == "Well."
        else:
            _, answer = await here.posted(CHAT, body)
            assert (answer["choices"][0]["message"]["content"], answer["model"]) == ("Well.", body["model"])
        (request,) = model.requests
        assert (request.tools, request.temperature) == ((), 0.5)
        assert request.messages[0].text == "You sell tea."
        assert await sessions(here) == []


async def test_a_model_that_calls_a_tool_all_the_same_gets_none():
    async with served(shop([call("order", item="tea")], "There is no tool.", "There is no tool.")) as here:
        _, answer = await here.posted(CHAT, asked(model="shop-raw"))
        assert answer["choices"][0]["message"]["content"] == "There is no tool."
        assert DONE == []


async def test_agents_are_listed_with_and_without_their_tools():
    first = Agent(name="agent", model=ScriptedModel())
    async with served(first, shop("x", store=first.store)) as here:
        _, body = await here.json("/v1/models")
        assert [one["id"] for one in body["data"]] == ["agent", "shop", "shop-raw"]
        assert body["object"] == "list"
        assert (await here.json("/v1/models/shop-raw")) == (200, body["data"][2])
        status, error = await here.json("/v1/models/agent-raw")
        assert (status, error["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (asked(model="gpt-9"), 404, "model_not_found", "model"),
        (asked(surprise=1), 400, "unknown_parameter", "surprise"),
        (asked(n=2), 400, "unsupported_value", "n"),
        (asked(logprobs=True), 400, "unsupported_value", "logprobs"),
        (asked(tools=[{"type": "function"}]), 400, "unsupported_value", "tools"),
        (asked(tool_choice="required"), 400, "unsupported_value", "tool_choice"),
        (asked(tool_choice={"type": "function"}), 400, "unsupported_value", "tool_choice"),
        (asked(response_format={"type": "json_object"}), 400, "unsupported_value", "response_format"),
        (asked(audio={"voice": "x"}), 400, "unsupported_value", "audio"),
        (asked(metadata={"session_id": 7}), 400, "invalid_type", "metadata.session_id"),
        (asked(metadata={"session_id": "no/id"}), 400, "request", None),
        (asked("one", "two"), 400, "request", None),
        (asked(messages=[]), 400, "request", None),
        (asked(messages=[{"role": "king", "content": "x"}]), 400, "request", None),
        (asked(messages=[{"role": "user", "content": 7}]), 400, "request", None),
        (asked(messages=[{"role": "user", "content": None}]), 400, "request", None),
        (asked(messages=[{"role": "user", "content": [{"type": "input_audio"}]}]), 400, "request", None),
        (
            asked(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            400,
            "request",
            None,
        ),
        ({"messages": []}, 400, "request", None),
        ([], 400, "request", None),
    ],
)
async def test_what_cannot_be_served_is_refused_in_the_form_of_openai(body, status, code, param):
    async with served() as here:
        for stream in ({}, {"stream": True}):
            told, error = await refused(here, body | stream if isinstance(body, dict) else body)
            assert (told, error["code"], error["param"]) == (status, code, param)
            assert error["type"] == "invalid_request_error"
        assert await sessions(here) == []


async def test_what_an_agent_decides_itself_is_accepted_and_left_alone():
    async with served() as here:
        given = {"temperature": 0, "max_tokens": 5, "top_k": 3, "user": "ann", "stop": ["x"], "n": 1, "stream": None}
        status, _ = await here.posted(CHAT, asked(tool_choice="auto", tools=[], logprobs=None, **given))
        assert status == 200


async def test_errors_of_keys_and_of_the_body_have_the_form_of_openai():
    key, settings = made("ann")
    async with served(keys=settings) as here:
        status, error = await refused(here, asked())
        assert (status, error["code"]) == (401, "invalid_api_key")
        assert (await here.posted(CHAT, asked(), headers=bearer(key)))[0] == 200
        async with here.get("/v1/models") as response:
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        async with here.client.post(here.base + CHAT, data=b"{", headers=bearer(key)) as response:
            assert (response.status, "type" in (await response.json())["error"]) == (415, True)
        # so have those that are told before any route is found
        for method, path, headers, expected in (
            ("GET", "/v1/models", {"Host": "evil example"}, 403),
            ("POST", CHAT, {"Origin": "https://evil.example"}, 403),
            ("GET", "/v1/nowhere", {}, 404),
            ("DELETE", CHAT, {}, 405),
        ):
            async with here.client.request(method, here.base + path, headers=headers) as response:
                assert response.status == expected
                assert set((await response.json())["error"]) == {"message", "type", "param", "code"}
        # those of the other routes keep theirs
        assert set((await here.json("/nowhere/v1/models"))[1]["error"]) == {"kind", "message"}
        assert set((await here.json("/api/agents"))[1]["error"]) == {"kind", "message"}


async def test_a_run_that_fails_is_told_with_its_status_and_is_not_to_be_sent_again_after_effects():
    script = ([call("order", item="tea")], [RuntimeError("broken")])
    async with served(shop(*script, *script)) as here:
        async with here.post(CHAT, asked(model="shop")) as response:
            assert (response.status, response.headers["x-should-retry"]) == (502, "false")
            error = (await response.json())["error"]
            assert (error["type"], error["code"]) == ("server_error", "model")
        told = await chunks(here, asked(model="shop"))
        assert told[-1]["error"]["code"] == "model"
        assert await sessions(here) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_question_is_the_answer_and_the_next_message_answers_it(stream):
    question = [call("ask_user", question="Which?", options=["green", "black"])]
    async with served(shop(question, "Green it is.", tools=[ask_user])) as here:

        async def say(text):
            body = asked(text, model="shop", metadata={"session_id": "s1"})
            if stream:
                return text_of(await chunks(here, body))
            return (await here.posted(CHAT, body))[1]["choices"][0]["message"]["content"]

        assert await say("tea") == "Which?\n- green\n- black"
        assert await say("green") == "Green it is."
        _, session = await here.json("/api/sessions/s1")
        assert [turn["outcome"] for turn in session["turns"]] == ["final"]


async def test_a_question_without_a_session_is_the_answer_and_its_run_is_given_up():
    question = [call("ask_user", question="Which?")]
    async with served(shop(question, "Green it is.", tools=[ask_user])) as here:
        _, answer = await here.posted(CHAT, asked("tea", model="shop"))
        said = answer["choices"][0]["message"]["content"]
        assert said == "Which?"
        _, answer = await here.posted(CHAT, asked("tea", said, "green", model="shop"))
        assert answer["choices"][0]["message"]["content"] == "Green it is."
        assert await sessions(here) == []


async def test_what_waits_for_approval_cannot_be_approved_here():
    async with served(shop(["I pay. ", call("pay", id="p", amount=3)], "Paid.", tools=[pay])) as here:
        fields = {"model": "shop", "metadata": {"session_id": "s1"}}
        _, answer = await here.posted(CHAT, asked(**fields))
        said = answer["choices"][0]["message"]["content"]
        assert said == "I pay.\n\n[pay waits for approval, which cannot be given here]"
        assert (await refused(here, asked("yes, pay", **fields)))[0] == 409
        assert DONE == []
        run_id = answer["id"].removeprefix("chatcmpl-")
        await here.posted(f"/api/runs/{run_id}/approve", {"call_id": "p"})
        async with here.get(f"/api/runs/{run_id}/events") as response:
            await response.text()
        assert DONE == [3]


async def test_without_a_session_what_waits_for_approval_is_given_up():
    async with served(shop([call("pay", amount=3)], tools=[pay])) as here:
        _, answer = await here.posted(CHAT, asked(model="shop"))
        assert "waits for approval" in answer["choices"][0]["message"]["content"]
        await settled()
        assert (DONE, await sessions(here), len(here.server.presence)) == ([], [], 0)


@pytest.mark.parametrize("raw", [False, True])
async def test_a_client_that_leaves_has_stopped_its_run(raw):
    model = Gate()
    async with served(Agent(model=model, tools=[order])) as here:
        async with here.post(CHAT, asked(model="agent-raw" if raw else "agent", stream=True)) as response:
            frames = Frames(response)
            await frames.next()
            await model.waiting.wait()
            response.close()
        for record in await here.server.store.list_runs(open_only=True):
            async for _ in here.server.agents["agent"].follow(record.run_id):
                pass
        await settled()
        assert await sessions(here) == []
        assert not await here.server.store.list_runs(open_only=True)


@pytest.mark.parametrize("model", ["agent", "agent-raw"])
async def test_a_server_that_ends_says_so(model):
    gate = Gate()
    async with served(Agent(model=gate, tools=[order])) as here:
        async with here.post(CHAT, asked(model=model, stream=True)) as response:
            frames = Frames(response)
            await frames.next()
            await gate.waiting.wait()
            here.server.connections.end()
            assert (await frames.rest())[-1]["error"]["code"] == "unavailable"
        here.server.draining = True
        status, error = await refused(here, asked(model=model))
        assert (status, error["type"], error["code"]) == (503, "server_error", "unavailable")


@pytest.mark.parametrize("model", ["agent", "agent-raw"])
async def test_a_run_is_one_that_a_server_waits_for_and_then_cancels(model):
    gate = Gate()
    async with (
        served(Agent(model=gate, tools=[order]), shutdown_grace=0.01) as here,
        here.post(CHAT, asked(model=model, stream=True)) as response,
    ):
        await gate.waiting.wait()
        assert len(here.server.presence) == 1
        await drain(here.app)
        assert "was cancelled (shutdown)" in await response.text()


async def test_a_question_of_an_agent_without_tools_is_not_waited_for():
    question = json.dumps({"question": "Green or black?", "options": ["green", "black"]})
    async with served(shop(question, "Black it is.")) as here:
        body = {"model": "shop-raw", "metadata": {"session_id": "s1"}}
        for text, answer in (("Tea?", "Green or black?"), ("black", "Black it is.")):
            _, told = await here.posted(CHAT, asked(text, **body))
            assert answer in told["choices"][0]["message"]["content"]
        assert not await here.server.store.list_runs(open_only=True)


# -- the official client -----------------------------------------------------------------------------------------


def client_of(here, key="none"):
    return openai.AsyncOpenAI(base_url=f"{here.base}/v1", api_key=key, max_retries=0)


async def test_the_official_client_talks_with_an_agent():
    key, settings = made("ann")
    async with served(keys=settings) as here, client_of(here, key) as client:
        assert [one.id async for one in client.models.list()] == ["agent"]
        assert (await client.models.retrieve("agent")).owned_by == "agentflow"
        messages = [{"role": "user", "content": "hello"}]
        answer = await client.chat.completions.create(model="agent", messages=messages, temperature=0.1)
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello there.", "stop")
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await client.chat.completions.create(model="agent", messages=messages, **options)
        told = [one async for one in stream]
        assert "".join(one.choices[0].delta.content or "" for one in told if one.choices) == "Hello there."
        assert told[-1].usage.total_tokens > 0


async def test_the_official_client_knows_our_errors():
    key, settings = made("ann")
    async with served(Agent(model=ScriptedModel([RuntimeError("broken")])), keys=settings) as here:
        messages = [{"role": "user", "content": "hello"}]
        async with client_of(here, "wrong") as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.models.list()
            assert refused.value.code == "invalid_api_key"
        async with client_of(here, key) as client:
            with pytest.raises(openai.NotFoundError) as refused:
                await client.chat.completions.create(model="other", messages=messages)
            assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="agent", messages=messages, extra_body={"surprise": 1})
            assert refused.value.code == "unknown_parameter"
            stream = await client.chat.completions.create(model="agent", messages=messages, stream=True)
            with pytest.raises(openai.APIError, match="broken"):
                [one async for one in stream]


async def test_the_official_client_does_not_send_again_what_had_effects():
    async with served(shop(*([call("order", item="tea")], [RuntimeError("broken")]) * 3)) as here:
        async with client_of(here) as client:
            messages = [{"role": "user", "content": "hello"}]
            with pytest.raises(openai.InternalServerError):
                await client.with_options(max_retries=2).chat.completions.create(model="shop", messages=messages)
        assert DONE == ["tea"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, "data: {broken\n\n"),
        (CHAT, 'data: {"error": {"message": "no"}}\n\n'),
        ("/v1/models", "[]"),
    ],
)
async def test_the_official_client_fails_on_a_server_that_is_wrong(path, body):
    async def wrong(request):
        kind = "text/event-stream" if path == CHAT else "application/json"
        return web.Response(text=body, content_type=kind)

    app = web.Application()
    app.router.add_route("*", path, wrong)
    async with listening(app) as here, client_of(here) as client:
        with pytest.raises((openai.APIError, ValueError, AttributeError)):
            if path == CHAT:
                messages = [{"role": "user", "content": "hello"}]
                stream = await client.chat.completions.create(model="agent", messages=messages, stream=True)
                [one async for one in stream]
            else:
                [one async for one in client.models.list()]
