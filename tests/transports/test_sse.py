import asyncio
import json
import socket

import pytest
from aiohttp import web
from reactivex import Subject, defer, empty, from_iterable, throw

from agentflow import Agent, InMemoryStore, Settings, tool
from agentflow.errors import StoreError
from agentflow.events import State, encode
from agentflow.testing import FakeProvider, ScriptedModel, Stall, call, text
from agentflow.tools import ask_user
from agentflow.transports import sse
from agentflow.transports.encoding import MAX_WRITE
from tests.transports.served import Frames, Gate, HandClock, listening, read, served, settled


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def adding():
    return Agent(model=ScriptedModel(["Wait. ", call("add", a=1, b=2)], "It is three."), tools=[add])


def paying():
    return Agent(model=ScriptedModel(["Wait. ", call("pay", amount=5)], "done"), tools=[pay])


async def stored(here, run_id):
    return [json.loads(encode(event)) for event in await here.server.store.read(run_id, 0, 10_000)]


async def begun(here, **fields):
    """A run that has ended, and its events."""
    async with here.post("/api/agent/stream", {"input": "hello", **fields}) as response:
        told = read(await response.text())
    return told[0][0].partition(":")[0], told


async def count_runs(here):
    return len(await here.server.store.list_runs())


# -- the frames --------------------------------------------------------------------------------------------


async def test_a_stream_of_events_is_the_log_and_each_frame_says_where_it_is():
    async with served(adding()) as here:
        run_id, told = await begun(here)
        assert [event for _, event in told] == await stored(here, run_id)
        assert [name for name, _ in told] == [f"{run_id}:{seq}" for seq in range(1, len(told) + 1)]


async def test_a_plain_page_sees_text_tools_and_the_end():
    async with served(adding()) as here, here.get("/api/agent/stream?message=add&sessionId=s1") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-cache, no-transform"
        assert response.headers["X-Accel-Buffering"] == "no"
        raw = await response.text()
        assert raw.startswith("retry: 1000\nid: ")
        told = [data for _, data in read(raw)]
        kinds = [one["type"] for one in told]
        assert kinds[:3] == ["content", "tool_call", "tool_result"]
        assert kinds[-1] == "done"
        assert json.loads(told[2]["data"])["result"] == "[success]\n3"
        assert "".join(one["rawContent"] for one in told if one["type"] == "content") == "Wait. It is three."
        assert told[-1]["rawContent"] == "It is three."
        assert json.loads(told[-1]["data"])["session_id"] == "s1"


async def test_the_union_can_be_asked_for_by_get_too():
    async with served() as here, here.get("/api/agent/stream?message=hi&format=events") as response:
        assert [data["type"] for _, data in read(await response.text())][:2] == ["input", "state"]


async def test_in_batches_a_frame_is_an_array():
    settings = Settings(flow={"mode": "batch", "window_ms": 1})
    async with served(adding(), settings=settings) as here:
        run_id, told = await begun(here)
        assert [event for _, events in told for event in events] == await stored(here, run_id)
        async with here.get(f"/api/runs/{run_id}/events?format=simple") as response:
            ((name, last),) = read(await response.text())[-1:]
            assert (name, last[-1]["type"]) == (f"{run_id}:{len(await stored(here, run_id))}", "done")


async def test_a_failed_and_a_cancelled_run_end_with_an_error():
    async with served(Agent(model=ScriptedModel())) as here, here.get("/api/agent/stream?message=x") as response:
        (_, told) = read(await response.text())[-1]
        assert (told["type"], json.loads(told["data"])["kind"]) == ("error", "model")


async def test_a_head_request_begins_nothing():
    async with served() as here:
        async with here.client.head(here.base + "/api/agent/stream?message=hi") as response:
            assert response.status == 405
        assert await count_runs(here) == 0


# -- going on ----------------------------------------------------------------------------------------------


async def test_from_every_event_on_the_rest_comes_without_gap_or_repeat_on_every_route():
    async with served(adding()) as here:
        run_id, told = await begun(here)
        for seen in range(1, len(told)):
            headers = {"Last-Event-ID": f"{run_id}:{seen}"}
            for get in (
                here.get("/api/agent/stream?message=other&format=events", headers=headers),
                here.post("/api/agent/stream", {"input": "other"}, headers=headers),
                here.get(f"/api/runs/{run_id}/events", headers=headers),
                here.get(f"/api/runs/{run_id}/events?after={seen}"),
            ):
                async with get as response:
                    assert read(await response.text()) == told[seen:]
        assert await count_runs(here) == 1


async def test_after_the_end_there_is_nothing_and_an_eventsource_stops():
    async with served() as here:
        run_id, told = await begun(here)
        for seen in (len(told), len(told) + 5):
            for form in ("simple", "events"):
                headers = {"Last-Event-ID": f"{run_id}:{seen}"}
                async with here.get(f"/api/agent/stream?message=x&format={form}", headers=headers) as response:
                    assert (response.status, await response.read()) == (204, b"")
        assert await count_runs(here) == 1


@pytest.mark.parametrize("last", ["garbage", "17", "r:x", ":5", "r:-1", "r:1:2", "r:1 ", "é:1", "r:" + "9" * 30])
async def test_what_is_no_id_is_refused(last):
    async with served() as here:
        head = (
            f"GET /api/agent/stream?message=x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nLast-Event-ID: {last}"
        )
        answer = await here.raw(head.encode() + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 40")
        assert await count_runs(here) == 0


async def test_unknown_runs_and_those_of_others_look_the_same():
    async with served() as here:
        run_id, _ = await begun(here, user_id="a")
        answers = set()
        for target in (run_id, run_id[::-1]):
            headers = {"Last-Event-ID": f"{target}:1"}
            for path in (
                "/api/agent/stream?message=x&user_id=b",
                "/api/agent/stream?message=x",
                f"/api/runs/{target}/events?user_id=b",
            ):
                status, body = await here.json(path, headers=headers)
                answers.add((status, json.dumps(body).replace(target, "")))
        assert len(answers) == 1
        assert answers.pop()[0] == 404
        status, _ = await here.json(f"/api/runs/{run_id}/events?user_id=a", headers={"Last-Event-ID": "other:1"})
        assert status == 404


async def test_a_cursor_that_is_ahead_waits_for_the_run_to_get_there():
    model = Gate()
    async with served(Agent(model=model)) as here, here.post("/api/agent/stream", {"input": "x"}) as response:
        first = await Frames(response).next()
        await model.waiting.wait()
        headers = {"Last-Event-ID": f"{first['run_id']}:6"}
        async with here.get(f"/api/runs/{first['run_id']}/events", headers=headers) as ahead:
            model.open.set()
            assert read(await ahead.text())[0][1]["seq"] == 7


async def test_a_connection_that_is_cut_loses_nothing_and_doubles_nothing():
    model = Gate("one ", "two ", "three ", "four")
    async with served(Agent(model=model)) as here:
        ask = "/api/agent/stream?message=x&format=events&request_id=r1"
        seen, last = [], None
        for reads in (1, 2, 1):
            async with here.get(ask, headers={"Last-Event-ID": last} if last else {}) as response:
                frames = Frames(response)
                seen += [await frames.next() for _ in range(reads)]
                last = frames.last_id
                response.close()
        model.open.set()
        async with here.get(ask, headers={"Last-Event-ID": last}) as response:
            seen += await Frames(response).rest()
        assert seen == await stored(here, seen[0]["run_id"])
        assert await count_runs(here) == 1


async def test_two_read_one_run_and_the_slow_one_holds_up_nobody():
    model = Gate()
    async with served(Agent(model=model)) as here, here.post("/api/agent/stream", {"input": "x"}) as slow:
        first = await Frames(slow).next()
        await model.waiting.wait()
        async with here.get(f"/api/runs/{first['run_id']}/events") as fast:
            model.open.set()
            assert [event for _, event in read(await fast.text())] == await stored(here, first["run_id"])


# -- who is there ------------------------------------------------------------------------------------------


async def test_a_run_whose_last_reader_has_left_is_cancelled_after_the_grace_and_its_provider_is_left():
    clock = HandClock()
    async with FakeProvider((*text("Hello there.").steps[:1], Stall())) as provider:
        agent = Agent(model="x", base_url=provider.base_url)
        async with served(agent, clock=clock) as here:
            async with here.post("/api/agent/stream", {"input": "x"}) as response:
                frames = Frames(response)
                while (event := await frames.next())["type"] != "delta":
                    pass
                clock.advance(1000)  # somebody reads
                response.close()
            await here.server.connections.closed()
            chain = here.server.chain(event["run_id"])
            clock.advance(29)
            assert chain.state is State.AWAITING_MODEL
            clock.advance(2)
            assert (await chain).reason == "disconnect"
            await settled()
        assert [request.ended for request in provider.requests] == ["client_left"]


async def test_a_detached_run_goes_on_without_readers():
    clock, model = HandClock(), Gate()
    async with served(Agent(model=model), clock=clock) as here:
        async with here.post("/api/agent/stream", {"input": "x", "detached": True}) as response:
            event = await Frames(response).next()
        chain = here.server.chain(event["run_id"])
        await here.server.connections.closed()
        clock.advance(1000)
        model.open.set()
        assert (await chain).text == "first last"


async def test_silence_is_broken_by_comments():
    model = Gate()
    async with served(Agent(model=model), ping=0.01) as here, here.post("/api/agent/stream", {"input": "x"}) as stream:
        await model.waiting.wait()
        while await stream.content.readline() != b": ping\n":
            pass
        assert await stream.content.readline() == b"\n"
        model.open.set()
        assert (await Frames(stream).rest())[-1]["type"] == "final"


async def test_a_reader_that_takes_nothing_is_dropped_and_comes_back_for_the_rest(monkeypatch):
    sent = []
    send = sse.Stream.send

    async def watched(self, data):
        await send(self, data)
        sent.append(self._request.transport.get_write_buffer_size())

    monkeypatch.setattr(sse.Stream, "send", watched)

    @tool
    async def lots():
        """Give a lot."""
        for _ in range(5):
            yield {"text": "y" * 150_000}

    agent = Agent(model=ScriptedModel([call("lots") for _ in range(6)], "done"), tools=[lots])
    async with served(agent, stall=0.05, ping=60) as here:
        body = json.dumps({"input": "x", "detached": True}).encode()
        head = "POST /api/agent/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client = socket.create_connection(("127.0.0.1", here.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while not sent:
            await settled()
        await here.server.connections.closed()
        assert max(sent) <= MAX_WRITE + 2 * 65536 + 4096
        client.close()
        (record,) = await here.server.store.list_runs()
        async with here.get(f"/api/runs/{record.run_id}/events?after=0") as response:
            events = [event for _, event in read(await response.text())]
        assert events == await stored(here, record.run_id)
        assert (events[-1]["type"], len(events)) == ("final", events[-1]["seq"])


# -- runs that wait, and runs that cannot begin ------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "kind"),
    [
        (paying, "approval"),
        (lambda: Agent(model=ScriptedModel([call("ask_user", question="Why?")], "done"), tools=[ask_user]), "question"),
    ],
)
async def test_a_plain_page_is_told_what_a_run_waits_for_and_goes_on_when_it_is_decided(agent, kind):
    async with served(agent()) as here:
        async with here.get("/api/agent/stream?message=x") as response:
            name, told = read(await response.text())[-1]
        data = json.loads(told["data"])
        (asked,) = data["pending"]
        assert (told["type"], data["state"], asked["type"]) == ("done", "suspended", kind)
        again = {"headers": {"Last-Event-ID": name}}
        async with here.get("/api/agent/stream?message=x", **again) as response:
            assert response.status == 204
        path = f"/api/runs/{data['run_id']}"
        if kind == "approval":
            decision = {name: asked[name] for name in ("call_id", "arguments_hash")}
            await here.posted(f"{path}/approve", decision)
        else:
            await here.posted(f"{path}/answer", {"text": "so"})
        async with here.get("/api/agent/stream?message=x", **again) as response:
            assert [data["type"] for _, data in read(await response.text())][-1] == "done"
        async with here.get(f"{path}/events?format=simple") as response:  # and nobody is told of a wait that is over
            kinds = [data["type"] for _, data in read(await response.text())]
            assert kinds.count("done") == 1


async def test_who_reads_all_events_reads_on_while_the_run_waits():
    async with served(paying(), ping=0.01) as here, here.post("/api/agent/stream", {"input": "x"}) as response:
        frames = Frames(response)
        while (event := await frames.next())["type"] != "approval":
            pass
        assert (await here.posted(f"/api/runs/{event['run_id']}/approve", {"call_id": event["call_id"]}))[0] == 202
        assert (await frames.rest())[-1]["type"] == "final"


async def test_a_session_that_is_busy_is_told_by_a_status():
    model = Gate()
    settings = Settings(session={"busy": "reject"})
    async with served(Agent(model=model, settings=settings), settings=settings) as here:
        ask = {"input": "x", "session_id": "s1"}
        async with here.post("/api/agent/stream", ask) as response:
            await Frames(response).next()
            for path in ("/api/agent/stream", "/api/agent/chat"):
                status, body = await here.posted(path, ask)
                assert (status, body["error"]["kind"]) == (409, "busy")
            model.open.set()


async def test_a_run_that_has_to_wait_for_its_session_is_waited_for(monkeypatch):
    monkeypatch.setattr(sse, "_PATIENCE", 0.01)
    model = Gate()
    async with served(Agent(model=model)) as here:
        ask = {"input": "x", "session_id": "s1"}
        async with here.post("/api/agent/stream", ask) as first:
            await Frames(first).next()
            async with here.post("/api/agent/stream", ask) as second:
                assert second.status == 200
                model.open.set()
                assert (await Frames(second).rest())[-1]["type"] == "final"


@pytest.mark.parametrize("form", ["simple", "events"])
async def test_a_store_that_fails_in_the_middle_breaks_the_stream_off(form):
    class Full(InMemoryStore):
        is_full = False

        async def append(self, *args, **options):
            if self.is_full:
                raise StoreError("the disk is full")
            await super().append(*args, **options)

    model, store = Gate(), Full()
    async with served(Agent(model=model, store=store)) as here:
        async with here.get(f"/api/agent/stream?message=x&format={form}") as response:
            await model.waiting.wait()
            store.is_full = True
            model.open.set()
            told = [data for _, data in read(await response.text())]
        assert told[-1]["type"] == ("error" if form == "simple" else "delta")
    await store.aclose()


# -- respond -----------------------------------------------------------------------------------------------


async def answering(answers, **headers):
    app = web.Application()

    async def handle(request):
        return await sse.respond(request, answers)

    app.router.add_get("/", handle)
    async with listening(app) as here, here.get("/", headers=headers) as response:
        return response.status, await response.text()


async def test_any_handler_can_answer_with_a_chains_answers():
    async with Agent(model=ScriptedModel("Hello there.")) as agent:
        status, raw = await answering(agent.stream("hi").answers())
    assert status == 200
    told = [data for _, data in read(raw)]
    assert "".join(one["rawContent"] for one in told) == "Hello there."
    assert told[-1]["type"] == "done"


@pytest.mark.parametrize(
    ("answers", "kinds"),
    [
        (empty(), ["done"]),
        (from_iterable(["a", "\n\nid: 5"]), ["content", "content", "done"]),
        (throw(StoreError("no")), ["error"]),
        (throw(ValueError("a secret")), ["error"]),
    ],
)
async def test_what_an_observable_gives_is_told_frame_by_frame(answers, kinds):
    _, raw = await answering(answers)
    assert [data["type"] for _, data in read(raw)] == kinds
    assert "a secret" not in raw


async def test_an_eventsource_that_comes_back_to_an_observable_is_told_to_stop():
    subscribed = []
    answers = defer(lambda _: subscribed.append(1) or empty())
    assert (await answering(answers, **{"Last-Event-ID": "answers:1"}))[0] == 204
    assert subscribed == []


async def test_a_client_that_leaves_ends_the_subscription(caplog):
    source, subscribed, left = Subject(), asyncio.Event(), asyncio.Event()
    answers = defer(lambda _: subscribed.set() or source)
    app = web.Application()

    async def handle(request):
        try:
            return await sse.respond(request, answers)
        finally:
            left.set()

    app.router.add_get("/", handle)
    async with listening(app) as here:
        async with here.get("/") as response:
            await subscribed.wait()
            await settled()
            source.on_next("a")
            assert (await Frames(response).next())["rawContent"] == "a"
            response.close()
        await left.wait()
    assert source.observers == []
    assert caplog.records == []
