"""What is asked of a run from elsewhere: heard at once, judged like what is asked here, and never lost."""

import asyncio

import pytest

from agentflow import Agent, tool
from agentflow.chain.letters import Letters
from agentflow.errors import StoreError
from agentflow.events import EventType, State
from agentflow.stores.base import Letter, cancel_letter
from agentflow.stores.in_memory import InMemoryStore
from agentflow.streams import TaskOwner
from agentflow.testing import FailingLog, ScriptedModel, assert_laws, call, run_virtual
from agentflow.testing.store_probe import log
from agentflow.tools import ask_user
from tests.builders import turns
from tests.chain.crashes import kill_at

pytestmark = pytest.mark.virtual_time


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def now():
    return asyncio.get_running_loop().time()


def a_store():
    return InMemoryStore(now=now)


def paying(store, *answers, **options):
    script = ScriptedModel([call("pay", amount=5)], *(answers or ("done",)))
    return Agent(model=script, tools=[pay], store=store, **options)


def letter(verb, name="1", **fields):
    return Letter(id=name, verb=verb, **fields)


async def events_of(store, chain):
    events = list(await store.read(chain.run_id, 0, 1000))
    assert_laws(events, ended=chain.state is not State.SUSPENDED)
    return events


def warnings(events):
    return [event.code for event in events if event.type is EventType.WARNING]


# -- the letters themselves ----------------------------------------------------------------------------------


class Desk:
    """Letters to a run of a store, with what was handed on, and whether the log has what came of it."""

    def __init__(self, store):
        self.store, self.handed, self.has_it, self.on = store, [], True, asyncio.Event()
        self.on.set()
        self.tasks = TaskOwner()
        self.letters = Letters(store, "r", self.tasks, hand_on=self.handed.append, settled=self.settled)

    async def settled(self):
        await self.on.wait()
        return self.has_it

    async def send(self, *names):
        for name in names:
            await self.store.send_letter("r", letter("answer", name))

    @property
    def ids(self):
        return [one.id for one in self.handed]

    async def left(self):
        return [one.id for one in await self.store.list_letters("r")]


async def a_desk(store=None):
    store = store or a_store()
    await store.append("r", log("r"))
    return Desk(store)


async def test_letters_are_handed_on_in_order_and_deleted_when_the_log_has_what_came_of_them():
    desk = await a_desk()
    await desk.send("a", "b")
    desk.on.clear()
    desk.letters.look()
    await turns()
    assert (desk.ids, await desk.left()) == (["a", "b"], ["a", "b"])
    await desk.send("c")
    desk.letters.look()
    desk.on.set()
    await turns()
    assert (desk.ids, await desk.left(), len(desk.tasks)) == (["a", "b", "c"], [], 0)


async def test_what_the_log_does_not_have_stays_for_the_next_process():
    desk = await a_desk()
    await desk.send("a")
    desk.has_it = False
    desk.letters.look()
    await turns()
    desk.letters.look()
    await turns()
    assert (desk.ids, await desk.left()) == (["a"], ["a"])


async def test_what_was_only_read_is_not_handed_on_again_and_deleted_with_the_next_look():
    desk = await a_desk()
    await desk.send("a")
    await desk.letters.read()
    assert (desk.ids, await desk.left()) == (["a"], ["a"])
    desk.letters.look()
    await turns()
    assert (desk.ids, await desk.left()) == (["a"], [])


async def test_a_letter_of_an_id_that_was_seen_to_is_another_one():
    desk = await a_desk()
    for _ in range(2):
        await desk.send("a")
        desk.letters.look()
        await turns()
    assert desk.ids == ["a", "a"]


@pytest.mark.parametrize("method", ["list_letters", "delete_letters"])
@pytest.mark.parametrize("error", [StoreError("down"), OSError("a driver's own")])
async def test_a_store_that_fails_meanwhile_loses_no_letter(method, error, caplog):
    desk = await a_desk(FailingLog(a_store(), fail_at=1, of=method, error=error))
    await desk.send("a")
    desk.letters.look()
    await turns()
    assert "could not be seen to" in caplog.text
    desk.letters.look()
    await turns()
    assert (desk.ids, await desk.left()) == (["a"], [])


# -- what they do to runs ------------------------------------------------------------------------------------


async def test_a_decision_from_elsewhere_counts_like_one_from_here_and_is_deleted():
    store = a_store()
    async with paying(store) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        began = now()
        approval = letter("approve", target=asked.call_id, arguments_hash=asked.arguments_hash, by="ann")
        await store.send_letter(chain.run_id, approval)
        assert (await chain).text == "done"
        assert now() == began
        events = await events_of(store, chain)
        (resolved,) = (event for event in events if event.type is EventType.RESOLVED)
        assert (resolved.decision, resolved.by, warnings(events)) == ("approved", "ann", [])


async def test_every_decision_may_come_by_letter():
    @tool
    async def work(what: str) -> str:
        """Work."""
        await asyncio.sleep(20 if what == "long" else 0)
        return what

    store = a_store()
    script = [call("pay", amount=1)], [call("pay", amount=2)], [call("ask_user", question="Sure?")]
    model = ScriptedModel(*script, [call("work", what="long")], "So it is.")
    async with Agent(model=model, tools=[pay, ask_user, work], store=store) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        await store.send_letter(chain.run_id, letter("reject", target=asked.call_id, text="too much"))
        await turns()
        (asked,) = (await chain.reply()).pending
        await store.send_letter(chain.run_id, letter("amend", target=asked.call_id, arguments={"amount": 3}))
        await turns()
        (asked,) = (await chain.reply()).pending
        await store.send_letter(chain.run_id, letter("answer", target=asked.question_id, text="yes"))
        await asyncio.sleep(1)
        events = await store.read(chain.run_id, 0, 1000)
        running = next(event for event in events if event.type is EventType.TOOL_START and event.tool == "work")
        await store.send_letter(chain.run_id, letter("amend", target=running.call_id, arguments={"what": "short"}))
        final = await chain
        results = [one.result for one in final.tools]
        assert results[0].startswith("[rejected]")
        assert "too much" in results[0]
        assert [one.split("\n")[1] for one in results[1:]] == ["paid 3", "yes", "short"]
        assert await store.list_letters(chain.run_id) == ()
        await events_of(store, chain)


async def test_what_does_not_count_is_told_by_a_warning_and_deleted():
    store = a_store()
    async with paying(store) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        for number, fields in enumerate(
            (
                {"verb": "approve", "target": "unknown"},
                {"verb": "approve", "target": asked.call_id, "arguments_hash": "of others"},
                {"verb": "answer", "text": "yes"},
                {"verb": "amend", "target": asked.call_id, "arguments": {"amount": "much"}},
                {"verb": "cancel", "text": "no reason"},
            )
        ):
            await store.send_letter(chain.run_id, Letter(id=str(number), **fields))
        await turns(20)
        assert (chain.state, await store.list_letters(chain.run_id)) == (State.SUSPENDED, ())
        for number in range(2):
            await store.send_letter(chain.run_id, letter("approve", f"a{number}", target=asked.call_id))
        await chain
        assert warnings(await events_of(store, chain)) == [
            *["decision_too_late"] * 3, *["decision_refused"] * 2, "decision_too_late",
        ]  # fmt: skip


async def test_a_cancel_from_elsewhere_is_heard_at_once_also_in_the_line_for_a_session():
    store = a_store()
    async with paying(store) as agent:
        holder = agent.start("hello", session_id="s")
        await holder.reply()
        waiting = Agent(model=ScriptedModel("x"), store=store)
        chain = waiting.start("hello", session_id="s")
        await turns()
        for one in (chain, holder):
            await store.send_letter(one.run_id, cancel_letter("superseded"))
            assert (await one).reason == "superseded"
        assert now() == 0
        await waiting.aclose()


async def test_a_run_that_waits_holds_no_task_for_its_letters():
    store = a_store()
    async with paying(store) as agent:
        chain = agent.start("hello")
        await chain.reply()
        await turns()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        chain.cancel()
        await chain
        await turns()
        assert store._inboxes.keys == ()


async def test_a_letter_that_was_not_heard_of_is_found_with_the_next_renewal():
    class Deaf(InMemoryStore):
        def listen(self, run_id, heard):
            return lambda: None

    store = Deaf(now=now)
    async with paying(store) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        await store.send_letter(chain.run_id, letter("approve", target=asked.call_id))
        assert (await chain).text == "done"
        assert now() <= 5.0


async def left_waiting(store):
    """A run that waits for an approval, and whose process has gone."""
    agent = paying(store)
    chain = agent.start("hello")
    (asked,) = (await chain.reply()).pending
    await agent.aclose()
    return chain.run_id, asked


async def test_who_takes_a_run_over_reads_first_what_was_decided_meanwhile():
    store = a_store()
    run_id, asked = await left_waiting(store)
    await store.send_letter(run_id, letter("approve", target=asked.call_id))
    async with Agent(model=ScriptedModel("done"), tools=[pay], store=store) as agent:
        (chain,) = await agent.recover()
        assert (await chain).text == "done"
        assert warnings(await events_of(store, chain)) == []
    assert await store.list_letters(run_id) == ()


async def test_a_run_that_was_asked_to_end_while_nobody_had_it_ends_when_it_is_taken_over():
    store = a_store()
    run_id, asked = await left_waiting(store)
    await store.send_letter(run_id, letter("approve", target=asked.call_id))
    await store.send_letter(run_id, cancel_letter("user"))
    async with Agent(model=ScriptedModel(), tools=[pay], store=store) as agent:
        (chain,) = await agent.recover()
        assert (await chain).reason == "user"
        await events_of(store, chain)


async def test_a_letter_whose_decision_is_in_the_log_already_does_not_count_twice():
    """The process died after the decision was written and before the letter was deleted."""
    store = FailingLog(a_store(), fail_at=1, of="delete_letters")
    async with paying(store, [call("pay", amount=6)]) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        await store.send_letter(chain.run_id, letter("approve", target=asked.call_id))
        await turns(20)
        assert chain.state is State.SUSPENDED
    async with Agent(model=ScriptedModel("done"), tools=[pay], store=store) as agent:
        (chain,) = await agent.recover()
        await turns()
        assert warnings(await events_of(store, chain)) == ["decision_too_late"]
        assert (chain.state, await store.list_letters(chain.run_id)) == (State.SUSPENDED, ())
        chain.cancel()
        await chain


async def test_a_letter_stays_where_the_log_failed_and_counts_when_the_run_is_taken_over():
    store = FailingLog(a_store(), fail_at=0)
    async with paying(store) as agent:
        chain = agent.start("hello")
        (asked,) = (await chain.reply()).pending
        store._fail_at = store.appends + 1
        await store.send_letter(chain.run_id, letter("approve", target=asked.call_id))
        with pytest.raises(StoreError):
            await chain
        await turns()
        assert [one.id for one in await store.list_letters(chain.run_id)] == ["1"]
    async with Agent(model=ScriptedModel("done"), tools=[pay], store=store) as agent:
        (chain,) = await agent.recover()
        assert (await chain).text == "done"
        assert warnings(await events_of(store, chain)) == []


async def test_a_letter_that_comes_while_a_run_is_taken_over_waits_until_it_is():
    class Slow(InMemoryStore):
        on = asyncio.Event()
        reading = asyncio.Event()

        async def read(self, run_id, after, limit):
            if limit > 1:  # the whole log
                self.reading.set()
                await self.on.wait()
            return await super().read(run_id, after, limit)

    store = Slow(now=now)
    store.on.set()
    run_id, asked = await left_waiting(store)
    store.on.clear()
    store.reading.clear()
    async with Agent(model=ScriptedModel("done"), tools=[pay], store=store) as agent:
        async with asyncio.TaskGroup() as group:
            recovering = group.create_task(agent.recover())
            await store.reading.wait()
            await store.send_letter(run_id, letter("approve", target=asked.call_id))
            await turns()
            store.on.set()
        (chain,) = recovering.result()
        assert (await chain).text == "done"
        assert warnings(await events_of(store, chain)) == []


def test_a_run_that_was_asked_to_end_asks_no_model_when_it_is_taken_over():
    store, _ = kill_at(
        lambda store, done: Agent(model=ScriptedModel("never"), store=store),
        lambda event: event.type is EventType.MODEL_START,
    )

    class Slow(FailingLog):
        async def _pass_on(self, name, *args, **kwargs):
            if name == "list_letters":
                await asyncio.sleep(1)
            return await super()._pass_on(name, *args, **kwargs)

    async def second_life():
        (record,) = await store.list_runs()
        await store.send_letter(record.run_id, cancel_letter("user"))
        model = ScriptedModel("never")
        async with Agent(model=model, store=Slow(store, fail_at=0)) as agent:
            (chain,) = await agent.recover()
            assert (await chain).reason == "user"
            assert model.requests == []

    run_virtual(second_life())
