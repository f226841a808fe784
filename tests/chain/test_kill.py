"""A process that dies between a call's `tool_start` and its outcome: what was done is not done again.

What a dead process leaves behind is what its store had done, and the effects its tools had had, in that order. One run
writes both down in one list, so that each beginning of the list is what a kill at some moment leaves: no step of the
loop and no await is passed over. A new process then has a store with the first part of that list, and recovers.
"""

import asyncio
import contextlib

import pytest

from agentflow import Agent, InMemoryStore, ModelChunk, tool
from agentflow.errors import NotPendingError
from agentflow.events import EventType
from agentflow.messages import unpaired
from agentflow.models.base import CallRequest
from agentflow.stores.base import SessionKey
from agentflow.testing import assert_laws
from tests.builders import log_of, of

pytestmark = pytest.mark.virtual_time

SESSION = SessionKey("s", "u")


class Disk(InMemoryStore):
    """A store that writes down what it has done, slowly; `entries` hold the tools' effects too.

    Leases are not written down: those of a dead process lapse.
    """

    def __init__(self):
        super().__init__()
        self.entries = []

    async def _do(self, name, *args):
        await asyncio.sleep(0)
        done = await getattr(InMemoryStore, name)(self, *args)
        self.entries.append((name, args))
        await asyncio.sleep(0)
        return done

    async def append(self, run_id, events, *, token=None):
        await self._do("append", run_id, events)

    async def open_session(self, key, run_id, **options):
        return await self._do("open_session", key, run_id)

    async def close_session(self, *args, token=None):
        await self._do("close_session", *args)

    async def claim_outcome(self, *args):
        return await self._do("claim_outcome", *args)

    async def keep_outcome(self, *args):
        await self._do("keep_outcome", *args)

    async def release_outcome(self, *args):
        await self._do("release_outcome", *args)

    async def left_by(self, entries):
        """Take over what a dead process has left; for this, `entries` of its own."""
        for name, args in entries:
            if name in ("effect", "tried"):
                self.entries.append((name, args))
            else:
                await getattr(self, name)(*args)
        return self


def shop(disk, **options):
    """A tool that pays, in several steps, one of which is the effect."""

    @tool(**options)
    async def pay(order_id: str, ways: int = 1) -> str:
        """Pay for an order."""
        await asyncio.sleep(0.1)
        if order_id == "later" and ("tried", ()) not in disk.entries:
            disk.entries.append(("tried", ()))
            raise ConnectionResetError("gone")
        disk.entries.append(("effect", (order_id,)))
        await asyncio.sleep(0.1)
        return f"receipt for {order_id}"

    return pay


async def model(request):
    """Pays what it is asked to pay, then tells how that went."""
    last = request.messages[-1]
    if last.role == "user" and last.text.startswith("pay "):
        calls = tuple(
            CallRequest(name="pay", arguments=f'{{"order_id": "{order_id}"}}', id=f"call-{order_id}")
            for order_id in last.text.removeprefix("pay ").split()
        )
        yield ModelChunk(calls=calls, finish_reason="tool_calls")
    else:
        yield ModelChunk(text="I am sorry, not all of it worked, or it is not known.", finish_reason="stop")


def agent_of(disk, **options):
    return Agent(model=model, tools=[shop(disk, **options)], store=disk)


async def delegate(request):
    """Hands on what it is asked, then tells how that went."""
    last = request.messages[-1]
    if last.role == "user" and last.text.startswith("pay "):
        yield ModelChunk(calls=(CallRequest(name="clerk", arguments=f'{{"input": "{last.text}"}}', id="clerk"),))
    else:
        yield ModelChunk(text="I am sorry, not all of it worked, or it is not known.", finish_reason="stop")


async def first_life(asked, agent_of=agent_of, **options):
    """All that a whole run writes down."""
    disk = Disk()
    async with agent_of(disk, **options) as agent:
        chain = agent.start(asked, session_id="s", user_id="u")
        await approve_all(chain)
    return chain.run_id, disk.entries


async def approve_all(chain):
    """Follow the run to its end, and approve what it asks for and has not been approved."""
    async for event in chain:
        if event.type is EventType.APPROVAL:
            with contextlib.suppress(NotPendingError):
                chain.approve(event.call_id)


async def second_life(run_id, entries, agent_of=agent_of, **options):
    """A new process finds `entries`: the whole log in the end, and what it wrote down itself."""
    disk = await Disk().left_by(entries)
    async with agent_of(disk, **options) as agent:
        for chain in await agent.recover():
            assert chain.run_id == run_id
            await approve_all(chain)
        log = await log_of(agent, run_id)
        assert_laws(log)
        assert await agent.recover() == []
        await check_the_session(disk, agent, run_id)
    return log, disk


async def check_the_session(disk, agent, run_id):
    """The turn stands in the session, once, and the conversation goes on."""
    assert (await agent.chat("and now?", session_id="s", user_id="u")).text
    kept = await disk.read_turns(SESSION, 0, 10)
    assert [turn.run_id for turn in kept].count(run_id) == 1
    assert unpaired([message for turn in kept for message in turn.messages]) is None


def kills(entries):
    """What the process leaves if it dies at any moment from its input on."""
    begun = next(position for position, (name, _) in enumerate(entries, 1) if name == "append")
    return [entries[:end] for end in range(begun, len(entries))]


def effects(entries):
    """What the tools did, in order."""
    return [args[0] for name, args in entries if name == "effect"]


def known(entries):
    """The calls of which a new process can tell that they were done."""
    appended = [event for name, args in entries if name == "append" for event in args[1]]
    kept = {args[2].call_id for name, args in entries if name == "keep_outcome"}
    return kept | {event.call_id for event in of(appended, EventType.TOOL_COMPLETE)}


def twice(entries):
    """What was done more than once."""
    done = effects(entries)
    return sorted({order_id for order_id in done if done.count(order_id) > 1})


WAYS = {
    "plain": {},
    "keyed": {"idempotency_key": ["order_id"]},
    "approved": {"approval": True},
    "approved and keyed": {"approval": True, "idempotency_key": ["order_id"]},
    "sequential": {"sequential": True},
}
ASKED = ["pay A", "pay A B C", "pay later B"]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
async def test_whenever_the_process_dies_nothing_is_done_twice(options, asked):
    run_id, entries = await first_life(asked, **options)
    for left in kills(entries):
        log, disk = await second_life(run_id, left, **options)
        assert twice(disk.entries) == []
        for record in log[-1].tools:
            order_id = record.call_id.removeprefix("call-")
            if record.status == "success":
                assert (effects(disk.entries).count(order_id), record.result) == (
                    1,
                    f"[success]\nreceipt for {order_id}",
                )
            else:
                assert record.status in ("unknown_outcome", "error")
                assert record.call_id not in known(left)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("key", [None, ["order_id"]])
async def test_an_idempotent_tool_is_run_again_until_it_is_known_to_have_worked(key, asked):
    options = {"idempotent": True, "idempotency_key": key}
    run_id, entries = await first_life(asked, **options)
    for left in kills(entries):
        log, disk = await second_life(run_id, left, **options)
        assert {record.status for record in log[-1].tools} == {"success"}
        for call_id in known(left):
            assert effects(disk.entries).count(call_id.removeprefix("call-")) == 1


@pytest.mark.parametrize("asked", ["pay A B", "pay later"])
@pytest.mark.parametrize("options", [WAYS["plain"], WAYS["keyed"]], ids=["plain", "keyed"])
async def test_the_process_that_recovers_may_die_as_well(options, asked):
    run_id, entries = await first_life(asked, **options)
    for left in kills(entries):
        _, second = await second_life(run_id, left, **options)
        for end in range(len(left) + 1, len(second.entries)):
            if second.entries[end - 1][0] == "append" and second.entries[end - 1][1][0] != run_id:
                break  # the next run of the conversation has begun
            _, third = await second_life(run_id, second.entries[:end], **options)
            assert twice(third.entries) == []


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_later_run_does_not_do_what_a_dead_one_may_have_done(idempotent):
    options = {"idempotency_key": ["order_id"], "idempotent": idempotent}
    run_id, entries = await first_life("pay A", **options)
    for left in kills(entries):
        _, disk = await second_life(run_id, left, **options)
        async with agent_of(disk, **options) as agent:
            reply = await agent.chat("pay A", user_id="u")
        if idempotent:
            assert reply.tools[0].status == "success"
        else:
            assert twice(disk.entries) == []


@pytest.mark.parametrize(
    "options", [WAYS["plain"], WAYS["keyed"], WAYS["approved"]], ids=["plain", "keyed", "approved"]
)
async def test_it_holds_for_the_agents_below_too(options):
    def parent_of(disk, **declared):
        clerk = Agent(name="clerk", model=model, tools=[shop(disk, **declared)])
        return Agent(model=delegate, tools=[clerk.as_tool()], store=disk)

    run_id, entries = await first_life("pay A B", agent_of=parent_of, **options)
    for left in kills(entries):
        log, disk = await second_life(run_id, left, agent_of=parent_of, **options)
        assert twice(disk.entries) == []
        assert [record.tool for record in log[-1].tools] == ["clerk"]
        done = {event.call_id for event in of(log, EventType.TOOL_COMPLETE)}
        assert known(left) <= done
