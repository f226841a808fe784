import asyncio
import random

import pytest

from agentflow import Agent, InMemoryStore, Settings
from agentflow.errors import StoreError
from agentflow.event_log import Reader
from agentflow.events import EventType
from agentflow.models.base import ModelChunk
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import ScriptedModel, assert_laws, call
from agentflow.tools import ask_user
from agentflow.transports.websocket import MAX_FOLLOWED
from tests.transports.served import Gate, HandClock, pair, served
from tests.transports.sockets import connected
from tests.transports.test_adapter import BAD_VALUES, GOOD, send
from tests.transports.test_bodies import BAD_JSON

pytestmark = pytest.mark.virtual_time


async def test_a_run_is_acknowledged_and_told_whole():
    async with served() as here, connected(here) as client:
        run_id = await client.accepted("run", input="hello")
        assert client.events == {}
        found = await client.ended(run_id)
        assert_laws(found)
        assert found[-1].text == "Hello there."
        assert found == list(await here.server.store.read(run_id, 0, 1000))


async def test_several_runs_share_a_socket_and_each_is_told_in_order():
    models = {name: Gate(f"{name} ", "done") for name in ("one", "two", "three")}
    async with served(*pair(**models)) as here, connected(here) as client:
        runs = {name: await client.accepted("run", input="hello", agent=name) for name in models}
        for name in reversed(models):
            while not any(event.type == EventType.DELTA for event in client.events.get(runs[name], ())):
                await client.next()
            models[name].open.set()
            assert (await client.ended(runs[name]))[-1].text == f"{name} done"
        for run_id, found in client.events.items():
            assert_laws(found)
            assert {event.run_id for event in found} == {run_id}


async def test_who_connects_again_goes_on_after_the_last_event_seen():
    model = Gate()
    async with served(Agent(model=model)) as here:
        async with connected(here) as client:
            run_id = await client.accepted("run", input="hello")
            await client.until("delta")
            seen = client.events[run_id]
            await client.drop()
        model.open.set()
        async with connected(here) as client:
            assert await client.accepted("follow", run_id=run_id, after=seen[-1].seq) == run_id
            assert_laws(seen + await client.ended(run_id))


async def test_a_run_that_is_sent_twice_with_one_id_is_one_run():
    async with served() as here, connected(here) as client:
        first = await client.accepted("run", input="hello", request_id="r1")
        await client.ended(first)
        client.events.clear()
        assert await client.accepted("run", input="hello", request_id="r1") == first
        assert_laws(await client.ended(first))
        error = await client.refused("run", input="other", request_id="r1")
        assert error["kind"] == "conflict"


async def test_following_a_run_again_begins_anew_at_the_cursor():
    model = Gate()
    async with served(Agent(model=model)) as here, connected(here) as client:
        run_id = await client.accepted("run", input="hello")
        await client.until("delta")
        first = list(client.events.pop(run_id))
        await client.accepted("follow", run_id=run_id, after=2)
        model.open.set()
        again = await client.ended(run_id)
        assert [event.seq for event in again] == list(range(3, again[-1].seq + 1))
        assert again[: len(first) - 2] == first[2:]


async def test_a_cursor_beyond_the_last_event_waits_for_it():
    model = Gate()
    async with served(Agent(model=model)) as here, connected(here) as client:
        run_id = await client.accepted("run", input="hello")
        last = (await client.until("delta"))["seq"]
        client.events.clear()
        await client.accepted("follow", run_id=run_id, after=last + 2)
        model.open.set()
        found = await client.ended(run_id)
        assert found[0].seq == last + 3


async def test_nothing_is_told_after_the_end_and_the_socket_stays():
    async with served() as here, connected(here) as client:
        run_id = await client.accepted("run", input="hello")
        end = (await client.ended(run_id))[-1]
        client.events.clear()
        await client.accepted("follow", run_id=run_id, after=end.seq)
        other = await client.accepted("run", input="again")
        await client.ended(other)
        assert set(client.events) == {other}


async def waiting(client):
    """A run that waits for the approval of a call, and that approval."""
    run_id = await client.accepted("run", input="send it")
    asked = await client.until("approval")
    await client.until("state")
    return run_id, asked


DECISIONS = {
    "approve": (lambda asked: {"arguments_hash": asked["arguments_hash"]}, "sent to bob"),
    "reject": (lambda asked: {"why": "not him"}, "not him"),
    "amend": (lambda asked: {"arguments": {"to": "eve"}}, "sent to eve"),
}


@pytest.mark.parametrize("kind", DECISIONS)
async def test_a_call_is_decided_on(kind):
    fields, expected = DECISIONS[kind]
    agent = Agent(model=ScriptedModel([call("send", to="bob")], "Done.", "Done."), tools=[send])
    async with served(agent) as here, connected(here) as client:
        run_id, asked = await waiting(client)
        decision = {"run_id": run_id, "call_id": asked["call_id"], **fields(asked)}
        await client.accepted(kind, user_id=None, **decision)
        assert expected in (await client.ended(run_id))[-1].tools[0].result
        assert (await client.refused(kind, **decision))["kind"] == "not_pending"


async def test_a_question_is_answered():
    model = ScriptedModel([call("ask_user", question="Which?")], "The blue one.")
    async with served(Agent(model=model, tools=[ask_user])) as here, connected(here) as client:
        run_id = await client.accepted("run", input="take one")
        asked = await client.until("question")
        await client.until("state")
        await client.accepted("answer", run_id=run_id, text="blue", question_id=asked["question_id"])
        assert (await client.ended(run_id))[-1].text == "The blue one."


async def test_a_run_is_cancelled():
    async with served(Agent(model=Gate())) as here, connected(here) as client:
        run_id = await client.accepted("run", input="hello")
        await client.until("delta")
        await client.accepted("cancel", run_id=run_id)
        assert (await client.ended(run_id))[-1].reason == "user"
        await client.accepted("cancel", run_id=run_id)


async def test_a_run_that_cannot_begin_is_refused_after_all():
    settings = Settings(session={"busy": "reject"})
    agent = Agent(model=Gate(), settings=settings)
    async with served(agent, settings=settings) as here, connected(here) as client:
        await client.accepted("run", input="hello", session_id="s")
        await client.until("delta")
        run_id = await client.accepted("run", input="hello", session_id="s")
        told = await client.until("refused")
        assert (told["id"], told["run_id"], told["error"]["kind"]) == ("run", run_id, "busy")


async def test_a_run_whose_log_cannot_be_read_on_is_told_so_and_can_be_followed_again(monkeypatch):
    async with served() as here, connected(here) as client:
        run_id = await client.accepted("run", input="hello")
        await client.ended(run_id)
        client.events.clear()
        read, errors = here.server.store.read, [StoreError("gone"), None]  # the first look is for the run's user

        async def failing(*args):
            if errors and (error := errors.pop()) is not None:
                raise error
            return await read(*args)

        monkeypatch.setattr(here.server.store, "read", failing)
        await client.accepted("follow", run_id=run_id)
        told = await client.until("refused")
        assert (told["id"], told["run_id"], told["error"]["kind"]) == ("follow", run_id, "store")
        await client.accepted("follow", run_id=run_id)
        assert_laws(await client.ended(run_id))


class Slow:
    """A model whose answer comes in many pieces over time."""

    provider = name = "slow"

    async def stream(self, request):
        for number in range(30):
            await asyncio.sleep(0.25)
            yield ModelChunk(text=f"{number} ")
        yield ModelChunk(finish_reason="stop")


def open_runs(seen):
    return [run_id for run_id, events in seen.items() if not events or events[-1].type != EventType.FINAL]


@pytest.mark.parametrize("kind", ["in_memory", "sqlite"])
@pytest.mark.parametrize("seed", range(5))
async def test_clients_that_are_cut_off_at_random_lose_nothing_and_see_nothing_twice(kind, seed, tmp_path):
    chance = random.Random(seed)
    store = InMemoryStore() if kind == "in_memory" else SqliteStore(tmp_path / "runs.db")
    cuts = 0
    try:
        async with served(Agent(model=Slow(), store=store)) as here:
            async with connected(here) as client:
                seen = {await client.accepted("run", input="hello"): [] for _ in range(3)}
                seen |= client.events
            while following := open_runs(seen):
                async with connected(here) as client:
                    client.events = seen
                    for run_id in following:
                        await client.accepted("follow", run_id=run_id, after=len(seen[run_id]))
                    for _ in range(chance.randrange(12)):
                        if open_runs(seen):
                            await client.next()
                    if chance.random() < 0.7:
                        await client.drop()
                cuts += 1
            for run_id, events in seen.items():
                assert events == list(await store.read(run_id, 0, 1000))
                assert_laws(events)
    finally:
        await store.aclose()
    assert cuts > 10


async def test_a_run_that_nobody_follows_any_more_is_cancelled_after_the_grace():
    async with served(Agent(model=Gate())) as here:
        async with connected(here) as client:
            run_id = await client.accepted("run", input="hello")
            await client.until("delta")
        chain = here.server.chain(run_id)
        await asyncio.sleep(29)
        assert chain.state != "cancelled"
        assert (await chain).reason == "disconnect"


async def test_with_batches_a_window_is_one_message():
    settings = Settings(flow={"mode": "batch"})
    async with served(settings=settings) as here, connected(here) as client:
        await client.accepted("run", input="hello")
        batches = []
        while not batches or batches[-1][-1]["type"] != "final":
            batches.append(await client.socket.receive_json())
        assert [event["seq"] for batch in batches for event in batch] == list(range(1, sum(map(len, batches)) + 1))
        assert len(batches) < sum(map(len, batches))


# -- what is refused ---------------------------------------------------------------------------------------


async def test_what_is_no_command_is_refused_and_the_next_one_done(caplog):
    clock = HandClock()
    async with served(clock=clock) as here, connected(here) as client:
        for data in BAD_JSON.values():
            try:
                text = data.decode()
            except UnicodeDecodeError:
                continue  # no text at all
            clock.advance(1)
            await client.socket.send_str(text)
            told = await client.next()
            assert (told["type"], told["id"], told["error"]["kind"]) == ("refused", None, "request")
        for kind, fields in GOOD.items():
            for name, values in BAD_VALUES.items():
                for value in values:
                    if (name in fields or name == "surplus") and len(str(value)) < 200_000:
                        clock.advance(1)
                        error = await client.refused(kind, **{**fields, name: value})
                        assert error["kind"] == "request"
        await client.ended(await client.accepted("run", input="hello"))
    assert caplog.records == []


@pytest.mark.parametrize("kind", [kind for kind in GOOD if kind != "run"])
async def test_the_runs_of_others_are_as_unknown_as_those_that_never_were(kind):
    agent = Agent(model=ScriptedModel([call("send", to="bob")]), tools=[send])
    async with served(agent) as here, connected(here) as client:
        run_id, asked = await waiting(client)
        fields = {**GOOD[kind], "call_id": asked["call_id"]} if "call_id" in GOOD[kind] else GOOD[kind]
        foreign = await client.refused(kind, **{**fields, "run_id": run_id, "user_id": "eve"})
        unknown = await client.refused(kind, **{**fields, "run_id": "nothing", "user_id": "eve"})
        assert foreign["kind"] == "run_not_found"
        assert foreign["message"].replace(run_id, "nothing") == unknown["message"]
        assert here.server.chain(run_id).state == "suspended"


async def test_what_goes_wrong_on_our_side_is_told_without_details(monkeypatch, caplog):
    async with served() as here, connected(here) as client:
        run_id = await client.accepted("run", input="hello")
        await client.ended(run_id)

        async def broken(*_):
            raise ValueError("a secret detail")

        expected = {"kind": "internal", "message": "the server failed; its log says why"}
        with monkeypatch.context() as patched:
            patched.setattr(here.server, "check_run", broken)
            assert await client.refused("cancel", run_id=run_id) == expected
        with monkeypatch.context() as patched:
            patched.setattr(Reader, "page", broken)
            await client.accepted("follow", run_id=run_id)
            told = await client.until("refused")
            assert (told["run_id"], told["error"]) == (run_id, expected)
        await client.ended(await client.accepted("run", input="hello"))
    assert [record.message for record in caplog.records] == [
        "a command failed",
        f"the events of run {run_id} break off",
    ]


async def test_a_socket_follows_so_many_runs_and_no_more():
    agent = Agent(model=Gate(), settings=Settings())
    clock = HandClock()
    async with served(agent, clock=clock) as here, connected(here) as client:
        runs = []
        for _ in range(MAX_FOLLOWED):
            clock.advance(1)
            runs.append(await client.accepted("run", input="hello"))
        assert (await client.refused("run", input="hello"))["kind"] == "limit"
        assert await client.accepted("follow", run_id=runs[0]) == runs[0]
        await client.accepted("cancel", run_id=runs[1])
        await client.ended(runs[1])
        clock.advance(5)
        await client.accepted("cancel", run_id=await client.accepted("run", input="hello"))
