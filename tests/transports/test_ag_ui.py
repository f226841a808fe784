import asyncio
import json
import shutil
from pathlib import Path

import pytest
from aiohttp import web

from agentflow import Agent, tool
from agentflow.messages import ImagePart, TextPart
from agentflow.models.base import ModelChunk
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ask_user
from agentflow.transports.ag_ui_encoding import AguiEncoder
from tests.transports.ag_ui_law import Client, assert_lawful
from tests.transports.served import Frames, Gate, listening, read, served
from tests.transports.test_ag_ui_encoding import LOGS, nested_log, told_of
from tests.transports.test_ag_ui_encoding import read as read_log
from tests.transports.test_auth import bearer, made

NODE = Path(__file__).parent.parent / "node"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Listener:
    """A model that keeps what it is sent, and says nothing of interest."""

    provider = name = "listener"

    def __init__(self):
        self.requests = []

    async def stream(self, request):
        self.requests.append(request)
        yield ModelChunk(text="Well.", finish_reason="stop")


def payer(*more, tools=(pay,), **call_arguments):
    """An agent that pays once it may."""
    turn = ["I will pay. ", call("pay", id="p1", **(call_arguments or {"amount": 3}))]
    return Agent(name="payer", model=ScriptedModel(turn, "As you wish.", *more), tools=tools)


def asked(text="hello", thread="thread-1", **fields):
    messages = [{"id": "u", "role": "user", "content": text}] if text is not None else []
    return {"threadId": thread, "runId": "r", "messages": messages, "tools": [], "context": [], **fields}


def entry(name, status="resolved", **fields):
    return {"interruptId": name, "status": status, **fields}


async def told(here, body, path="/agui", **options):
    """The events of a stream, which is lawful."""
    async with here.post(path, body, **options) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        events = [data for _, data in read(await response.text())]
    assert_lawful(events)
    return events


async def refused(here, body, path="/agui", **options):
    status, answer = await here.posted(path, body, **options)
    return status, answer["error"]["kind"]


def run_id(events):
    """Our own id of the run."""
    return next(one["snapshot"]["agentflow"]["run_id"] for one in events if one["type"] == "STATE_SNAPSHOT")


async def outcome(here, events):
    """How the run ends."""
    async with here.get(f"/api/runs/{run_id(events)}/events") as response:
        return read(await response.text())[-1][1]["type"]


async def test_a_run_is_told_from_its_start_to_its_end():
    async with served() as here:
        events = await told(here, asked())
        assert (events[0]["threadId"], events[0]["runId"], events[0]["protocolVersion"]) == ("thread-1", "r", "1.0")
        client = Client()
        client.take(events)
        assert client.texts() == [("assistant", "Hello there.")]
        assert client.outcome == {"type": "success"}
        _, session = await here.json("/api/sessions/thread-1")
        assert [one["content"] for one in session["turns"][0]["messages"]] == ["hello", "Hello there."]


async def test_the_server_keeps_the_thread_and_only_the_last_message_is_new():
    model = Listener()
    async with served(Agent(model=model)) as here:
        await told(here, asked("one"))
        history = [
            {"id": "u", "role": "user", "content": "one"},
            {"id": "a", "role": "assistant", "content": "Well."},
            {"id": "v", "role": "user", "content": "two"},
        ]
        await told(here, asked(messages=history))
        await told(here, asked("else", thread="thread/2?"))
        assert [[one.text for one in request.messages] for request in model.requests] == [
            ["one"],
            ["one", "Well.", "two"],
            ["else"],
        ]


async def test_what_a_client_sends_beside_its_messages_is_in_the_metadata():
    async with served() as here:
        given = {"state": {"a": 1}, "context": [{"description": "d", "value": "v"}], "forwardedProps": {"b": 2}}
        events = await told(here, asked(**given, unknown="member", parentRunId="p", protocolVersion="1.0"))
        (snapshot,) = [one["snapshot"] for one in events if one["type"] == "STATE_SNAPSHOT"]
        assert snapshot["a"] == 1
        (begun,) = await here.server.store.read(snapshot["agentflow"]["run_id"], 0, 1)
        assert begun.metadata == given


async def test_pictures_are_shown_to_the_model():
    model = Listener()
    async with served(Agent(model=model)) as here:
        content = [
            {"type": "text", "text": "What is this?"},
            {"type": "image", "source": {"type": "data", "value": PNG, "mimeType": "image/png"}},
            {"type": "image", "source": {"type": "url", "value": "https://example.org/a.png"}},
        ]
        await told(here, asked(content))
        text, data, link = model.requests[0].messages[-1].content
        assert (text, link) == (TextPart("What is this?"), ImagePart(url="https://example.org/a.png"))
        assert data.data.startswith(b"\x89PNG")


async def test_the_address_says_which_agent_and_which_model():
    agents = [Agent(name="a", model=ScriptedModel("I am a."))]
    agents.append(Agent(name="b", model=ScriptedModel("I am b."), store=agents[0].store))
    async with served(*agents) as here:
        events = await told(here, asked(), "/agui?agent=b")
        assert "".join(one.get("delta", "") for one in events if one["type"] == "TEXT_MESSAGE_CONTENT") == "I am b."
        assert await refused(here, asked(), "/agui?agent=c") == (400, "request")
        assert await refused(here, asked(), "/agui?model=no/such") == (400, "config")


@pytest.mark.parametrize(
    ("payload", "result"),
    [
        ({"approved": True}, "[success]\npaid 3"),
        ({"approved": True, "editedArgs": {"amount": 4}}, "[success]\npaid 4"),
        ({"approved": False, "why": "too much"}, "too much"),
        (None, "rejected"),
    ],
)
async def test_an_approval_interrupts_and_its_answer_resumes(payload, result):
    async with served(payer("As you wish.")) as here:  # who was refused is asked to think again
        client = Client()
        client.take(await told(here, asked()))
        (interrupt,) = client.outcome["interrupts"]
        assert (interrupt["id"], interrupt["toolCallId"], interrupt["reason"]) == ("p1", "p1", "tool_call")
        assert interrupt["metadata"]["arguments"] == {"amount": 3}
        answer = entry("p1", payload=payload) if payload else entry("p1", "cancelled")
        resumed = await told(here, asked(None, resume=[answer]))
        assert "TOOL_CALL_START" not in {one["type"] for one in resumed}
        client.take(resumed)
        (message,) = [one for one in client.messages if one["role"] == "tool"]
        assert result in message["content"]
        assert (client.texts()[-1], client.outcome["type"]) == (("assistant", "As you wish."), "success")
        assert client.state["agentflow"]["state"] == "completed"


async def test_an_approval_counts_for_the_arguments_that_were_looked_at():
    async with served(payer()) as here:
        (interrupt,) = (await told(here, asked()))[-1]["outcome"]["interrupts"]
        answer = {"approved": True, "arguments_hash": "0" * 64}
        (error,) = await told(here, asked(None, resume=[entry("p1", payload=answer)]))
        assert (error["type"], error["code"]) == ("RUN_ERROR", "not_pending")
        answer["arguments_hash"] = interrupt["metadata"]["arguments_hash"]
        resumed = await told(here, asked(None, resume=[entry("p1", payload=answer)]))
        assert resumed[-1]["outcome"]["type"] == "success"


@pytest.mark.parametrize("payload", [{"answer": "blue"}, "blue"])
async def test_a_question_interrupts_and_its_answer_resumes(payload):
    turn = [call("ask_user", id="q1", question="Which?", options=["blue", "red"])]
    async with served(Agent(model=ScriptedModel(turn, "Blue it is."), tools=[ask_user])) as here:
        (interrupt,) = (await told(here, asked()))[-1]["outcome"]["interrupts"]
        assert (interrupt["reason"], interrupt["message"], interrupt["id"]) == ("input_required", "Which?", "q1")
        assert interrupt["responseSchema"]["properties"]["answer"]["enum"] == ["blue", "red"]
        resumed = await told(here, asked(None, resume=[entry("q1", payload=payload)]))
        assert any("blue" in one.get("content", "") for one in resumed)
        assert resumed[-1]["outcome"]["type"] == "success"


async def test_a_question_that_is_cancelled_ends_the_run():
    turn = [call("ask_user", id="q1", question="Which?")]
    async with served(Agent(model=ScriptedModel(turn, "Well."), tools=[ask_user])) as here:
        await told(here, asked())
        resumed = await told(here, asked(None, resume=[entry("q1", "cancelled")]))
        assert resumed[-1]["outcome"] == {"type": "cancelled"}


async def test_a_new_message_goes_on_where_all_that_waits_is_cancelled():
    async with served(payer()) as here:
        await told(here, asked())
        events = await told(here, asked("never mind", resume=[entry("p1", "cancelled")]))
        client = Client()
        client.take(events)
        assert (client.texts(), client.outcome["type"]) == ([("assistant", "As you wish.")], "success")
        _, session = await here.json("/api/sessions/thread-1")
        assert [turn["outcome"] for turn in session["turns"]] == ["cancelled", "final"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (asked(), "request"),
        (asked(None), "request"),
        (asked(resume=[entry("p1", payload={"approved": True})]), "request"),
        (asked(None, resume=[entry("other", payload={"approved": True})]), "request"),
        (asked(None, resume=[entry("p1", payload={"approved": "yes"})]), "request"),
        (asked(None, resume=[entry("p1")]), "request"),
        (asked(None, resume=[entry("p1", payload={"approved": True, "editedArgs": "x"})]), "request"),
        (asked(None, resume=[entry("p1", payload={"approved": True, "editedArgs": {"amount": "x"}})]), "arguments"),
    ],
)
async def test_an_answer_that_cannot_be_is_told_in_the_stream_and_the_run_waits_on(body, code):
    async with served(payer()) as here:
        await told(here, asked())
        (error,) = await told(here, body)
        assert (error["type"], error["code"]) == ("RUN_ERROR", code)
        resumed = await told(here, asked(None, resume=[entry("p1", payload={"approved": True})]))
        assert resumed[-1]["outcome"]["type"] == "success"
        (error,) = await told(here, asked(None, resume=[entry("p1", payload={"approved": True})]))
        assert (error["type"], error["code"]) == ("RUN_ERROR", "not_pending")


async def test_an_interrupt_that_is_decided_elsewhere_may_be_passed_over():
    async with served(payer("And on.")) as here:
        first = await told(here, asked())
        await here.posted(f"/api/runs/{run_id(first)}/approve", {"call_id": "p1"})
        assert await outcome(here, first) == "final"
        events = await told(here, asked("and now?", resume=[entry("p1", "cancelled")]))
        assert events[-1]["outcome"]["type"] == "success"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"threadId": "t", "runId": "r"},
        asked(None),
        asked(messages=[{"id": "a", "role": "assistant", "content": "x"}]),
        asked(messages=[{"role": "user", "content": "x"}]),
        asked(messages="x"),
        asked(""),
        asked(7),
        asked([{"type": "audio", "source": {"type": "data", "value": "", "mimeType": "audio/wav"}}]),
        asked([{"type": "image", "source": {"type": "data", "value": "?", "mimeType": "image/png"}}]),
        asked([{"type": "image", "source": {"type": "data", "value": PNG}}]),
        asked([{"type": "image", "source": {"type": "url", "value": "file:///etc/passwd"}}]),
        asked([{"type": "image", "source": {"type": "file", "value": "x"}}]),
        asked([{"type": "image"}]),
        asked(["x"]),
        asked(thread=""),
        asked(thread=7),
        asked(resume=[{}]),
        asked(resume="x"),
    ],
)
async def test_what_cannot_be_read_is_refused(body):
    async with served() as here:
        assert (await refused(here, body))[0] == 400


async def test_no_run_begins_while_the_server_shuts_down():
    async with served() as here:
        here.server.draining = True
        assert await refused(here, asked()) == (503, "unavailable")


async def test_a_failed_run_says_why():
    async with served(Agent(model=ScriptedModel([RuntimeError("broken")]))) as here:
        events = await told(here, asked())
        assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "model")


async def test_a_client_that_leaves_has_stopped_its_run():
    model = Gate()
    async with served(Agent(model=model)) as here:
        async with here.post("/agui", asked()) as response:
            frames = Frames(response)
            begun = [await frames.next(), await frames.next()]
            await model.waiting.wait()
            response.close()
        assert await outcome(here, begun) == "cancelled"


async def test_a_stream_that_the_server_ends_has_an_end():
    model = Gate()
    async with served(Agent(model=model)) as here, here.post("/agui", asked()) as response:
        frames = Frames(response)
        await frames.next()
        await model.waiting.wait()
        here.server.connections.end()
        end = (await frames.rest())[-1]
        assert (end["type"], end["code"]) == ("RUN_ERROR", "unavailable")


async def test_a_thread_belongs_to_its_user():
    (ann_key, ann_settings), (bob_key, bob_settings) = made("ann"), made("bob")
    async with served(payer(), keys=ann_settings | bob_settings) as here:
        ann, bob = bearer(ann_key), bearer(bob_key)
        await told(here, asked(), headers=ann)
        (error,) = await told(here, asked(None, resume=[entry("p1", payload={"approved": True})]), headers=bob)
        assert (error["type"], error["code"]) == ("RUN_ERROR", "not_pending")
        resumed = await told(here, asked(None, resume=[entry("p1", payload={"approved": True})]), headers=ann)
        assert resumed[-1]["outcome"]["type"] == "success"
        assert await refused(here, asked()) == (401, "unauthorized")


# -- the official client -----------------------------------------------------------------------------------------


async def play(url, *steps):
    """What the official client has after each step."""
    if shutil.which("node") is None or not (NODE / "node_modules" / "@ag-ui").is_dir():
        pytest.skip("needs node and: npm install --prefix tests/node")
    command = ("node", str(NODE / "ag_ui.mjs"), url, json.dumps(steps))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(out)


def said(step):
    return [(message["role"], message.get("content", "")) for message in step["messages"]]


async def test_the_official_client_talks_with_an_agent():
    async with served() as here:
        first, second = await play(here.base + "/agui", {"say": "hello"}, {"say": "again"})
        assert (first["error"], second["error"]) == (None, None)
        answer = ("assistant", "Hello there.")
        assert said(second) == [("user", "hello"), answer, ("user", "again"), answer]
        assert second["state"]["agentflow"]["state"] == "completed"


async def test_the_official_client_is_interrupted_and_resumes():
    async with served(payer()) as here:
        yes = {"resume": {"status": "resolved", "payload": {"approved": True}}}
        first, second = await play(here.base + "/agui", {"say": "pay"}, yes)
        assert (first["error"], [one["toolCallId"] for one in first["pending"]]) == (None, ["p1"])
        assert (second["error"], second["pending"]) == (None, [])
        assert said(second)[1:] == [
            ("assistant", "I will pay. "),
            ("tool", "[success]\npaid 3"),
            ("assistant", "As you wish."),
        ]
        assert_lawful(first["events"])
        assert_lawful(second["events"])


async def test_the_official_client_stops_a_run():
    model = Gate("first ", "never")
    async with served(Agent(model=model)) as here:
        (step,) = await play(here.base + "/agui", {"say": "hello", "abort": "TEXT_MESSAGE_CONTENT"})
        assert await outcome(here, step["events"]) == "cancelled"


async def test_the_official_client_takes_every_golden_log_and_agents_that_agents_call():
    before, after = await nested_log()
    logs = [(read_log(path), ()) for path in LOGS] + [(before, ()), (after, before)]
    coming = iter(logs)

    async def replay(request):
        given, (log, earlier) = await request.json(), next(coming)
        told = told_of(log, AguiEncoder(given["threadId"], given["runId"], messages=given["messages"]), earlier)
        return web.Response(
            text="".join(f"data: {json.dumps(one)}\n\n" for one in told), content_type="text/event-stream"
        )

    app = web.Application()
    app.router.add_post("/agui", replay)
    async with listening(app) as here:
        step = {"say": "go on", "resume": {"status": "cancelled"}}  # of whatever waits
        seen = await play(here.base + "/agui", *[step] * len(logs))
    assert [step["error"] for step in seen] == [None] * len(logs)


@pytest.mark.parametrize(
    "events",
    [
        [{"type": "RUN_STARTED"}, {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x"}],
        [{"type": "TEXT_MESSAGE_START", "messageId": "m"}],
        [{"type": "RUN_STARTED"}, {"type": "TEXT_MESSAGE_START", "messageId": "m"}, {"type": "RUN_FINISHED"}],
        ["[DONE]"],
    ],
)
async def test_the_official_client_fails_on_a_server_that_is_wrong(events):
    async def wrong(request):
        given = await request.json()
        names = {"threadId": given["threadId"], "runId": given["runId"]}
        told = [one if isinstance(one, str) else json.dumps(one | names) for one in events]
        return web.Response(text="".join(f"data: {one}\n\n" for one in told), content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/agui", wrong)
    async with listening(app) as here:
        (step,) = await play(here.base + "/agui", {"say": "hello"})
        assert step["error"] is not None
