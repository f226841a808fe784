import asyncio

from agentflow.stores.waiting import Waiters
from tests.builders import turns


async def wait(waiters, key):
    with waiters.join(key) as woken:
        await woken


async def test_all_who_wait_for_a_key_are_woken_and_nobody_else():
    waiters = Waiters()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wait(waiters, key)) for key in ("a", "a", "b")]
        await turns()
        assert set(waiters.keys) == {"a", "b"}
        waiters.wake("a")
        waiters.wake("nobody")
        await turns()
        assert [task.done() for task in tasks] == [True, True, False]
        waiters.wake("b")
    assert waiters.keys == ()


async def test_who_leaves_is_forgotten_also_in_the_moment_of_the_wake():
    waiters = Waiters()
    async with asyncio.TaskGroup() as group:
        leaver, other = (group.create_task(wait(waiters, "a")) for _ in range(2))
        await turns()
        leaver.cancel()
        await turns()
        assert waiters.keys == ("a",)
        other.cancel()
        waiters.wake("a")
        late = group.create_task(wait(waiters, "a"))
        await turns()
        assert (other.cancelled(), waiters.keys) == (True, ("a",))
        waiters.wake("a")
    assert late.done()
    assert waiters.keys == ()
