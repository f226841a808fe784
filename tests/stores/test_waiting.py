import asyncio
from functools import partial

from agentflow.stores.waiting import Listeners, Waiters
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


def test_all_who_listen_to_a_key_are_told_each_time_until_they_leave():
    listeners, told = Listeners(), []
    leave = [listeners.join(key, partial(told.append, name)) for key, name in (("a", 1), ("a", 2), ("b", 3))]
    assert set(listeners.keys) == {"a", "b"}
    listeners.wake("a")
    listeners.wake("nobody")
    leave[0]()
    leave[0]()
    listeners.wake("a")
    listeners.wake("b")
    assert told == [1, 2, 2, 3]
    leave[1]()
    leave[2]()
    assert listeners.keys == ()


def test_who_leaves_while_he_is_told_hinders_nobody():
    listeners, told = Listeners(), []

    def first():
        leave()
        told.append("first")

    leave = listeners.join("a", first)
    listeners.join("a", lambda: told.append("second"))
    listeners.wake("a")
    listeners.wake("a")
    assert told == ["first", "second", "second"]


def test_who_listens_again_is_not_left_out_by_leaving_the_first_time():
    listeners, told = Listeners(), []
    leave = listeners.join("a", lambda: told.append(1))
    leave()
    listeners.join("a", lambda: told.append(2))
    leave()
    listeners.wake("a")
    assert told == [2]
