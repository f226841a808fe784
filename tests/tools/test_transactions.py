"""Recipes: a database transaction that lives inside one call of a tool, in a thread and on the loop.

README shows them. What matters is how a transaction ends: committed with the call's result, else rolled back.
"""

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from functools import partial

import pytest

from agentflow import Agent, tool
from agentflow.events import State
from agentflow.testing import ScriptedModel, call
from tests.builders import turns

UNCHANGED = {"ann": 500, "bob": 0}
MOVED = {"ann": 380, "bob": 120}


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE accounts (name TEXT PRIMARY KEY, cents INTEGER CHECK (cents >= 0));"
            "INSERT INTO accounts VALUES ('ann', 500), ('bob', 0);"
        )
    return path


def balances(database):
    """What is committed; an error if a transaction still holds the file."""
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        return dict(connection.execute("SELECT name, cents FROM accounts"))


def add(connection, name, cents):
    """One of two statements that only make sense together; an overdraft is refused."""
    connection.execute("UPDATE accounts SET cents = cents + ? WHERE name = ?", (cents, name))


def agent_that_pays(cents, transfer):
    return Agent(model=ScriptedModel([call("transfer", cents=cents)], "Sorry."), tools=[transfer])


# In a function. It runs in one thread from its first line to its last, as a connection of sqlite3 demands.


@pytest.mark.parametrize(("cents", "status", "after"), [(120, "success", MOVED), (501, "error", UNCHANGED)])
async def test_a_function_commits_with_its_result_and_rolls_back_on_an_error(database, cents, status, after):
    def transfer(cents: int) -> str:
        """Move money from ann to bob."""
        with closing(sqlite3.connect(database)) as connection, connection:  # commits, or rolls back on an exception
            add(connection, "bob", cents)
            add(connection, "ann", -cents)
            return f"moved {cents}"

    async with agent_that_pays(cents, transfer) as agent:
        (record,) = (await agent.chat("pay bob")).tools

    assert record.status == status
    assert balances(database) == after


@pytest.mark.virtual_time
async def test_a_function_cannot_be_stopped_and_may_still_commit_when_its_time_is_over(database):
    inside, proceed, ended = (threading.Event() for _ in range(3))

    def transfer(cents: int) -> str:
        """Move money from ann to bob."""
        with closing(sqlite3.connect(database)) as connection, connection:
            add(connection, "bob", cents)
            inside.set()
            proceed.wait()
            add(connection, "ann", -cents)
        ended.set()
        return f"moved {cents}"

    async with agent_that_pays(120, transfer) as agent:
        run = agent.start("pay bob")
        await asyncio.to_thread(inside.wait)
        await asyncio.get_running_loop().advance(30)
        (record,) = (await run).tools
        proceed.set()
        await asyncio.to_thread(ended.wait)

    assert record.status == "timeout"
    assert balances(database) == MOVED


# In a coroutine. The recipe is `transaction`; the tools below are what its users would write.


@asynccontextmanager
async def transaction(database):
    """Gives `do(function, *arguments)`, which calls `function(connection, *arguments)` off the loop, in turn.

    Commits at the end of the block; rolls back if it is left by an error or a cancel, once the statement that is
    running has ended. A commit that has begun is not taken back.
    """
    loop = asyncio.get_running_loop()
    with (
        ThreadPoolExecutor(max_workers=1) as thread,
        closing(sqlite3.connect(database, check_same_thread=False)) as connection,
    ):
        try:
            yield lambda function, *arguments: loop.run_in_executor(thread, partial(function, connection, *arguments))
            await loop.run_in_executor(thread, connection.commit)
        except BaseException:  # a cancel is none of Exception
            await loop.run_in_executor(thread, connection.rollback)
            raise


class Transfers:
    """A tool that moves money in one transaction, and waits in the middle of it until it may proceed."""

    def __init__(self, database):
        self._database = database
        self.inside = asyncio.Event()
        self.proceed = asyncio.Event()

    @tool(timeout=5)
    async def transfer(self, cents: int) -> str:
        """Move money from ann to bob."""
        async with transaction(self._database) as do:
            await do(add, "bob", cents)
            self.inside.set()
            await self.proceed.wait()
            await do(add, "ann", -cents)
        return f"moved {cents}"


@pytest.mark.parametrize(("cents", "status", "after"), [(120, "success", MOVED), (501, "error", UNCHANGED)])
async def test_a_coroutine_commits_with_its_result_and_rolls_back_on_an_error(database, cents, status, after):
    transfers = Transfers(database)
    transfers.proceed.set()
    async with agent_that_pays(cents, transfers) as agent:
        (record,) = (await agent.chat("pay bob")).tools

    assert record.status == status
    assert balances(database) == after


@pytest.mark.virtual_time
async def test_a_coroutine_rolls_back_when_its_time_is_over(database):
    async with agent_that_pays(120, Transfers(database)) as agent:
        (record,) = (await agent.chat("pay bob")).tools

        assert record.status == "timeout"
        assert balances(database) == UNCHANGED
        assert agent.abandoned == 0


@pytest.mark.virtual_time
async def test_a_coroutine_rolls_back_when_its_run_is_cancelled(database):
    transfers = Transfers(database)
    async with agent_that_pays(120, transfers) as agent:
        run = agent.start("pay bob")
        await transfers.inside.wait()
        run.cancel()
        await run

        assert run.state == State.CANCELLED
        assert agent.abandoned == 0
    assert balances(database) == UNCHANGED


@pytest.mark.virtual_time
async def test_a_cancel_during_a_statement_rolls_back_when_the_statement_has_ended(database):
    inside, proceed = threading.Event(), threading.Event()

    def add_slowly(connection, name, cents):
        inside.set()
        proceed.wait()
        add(connection, name, cents)

    async def transfer(cents: int) -> str:
        """Move money from ann to bob."""
        async with transaction(database) as do:
            await do(add_slowly, "bob", cents)
        return f"moved {cents}"

    async with agent_that_pays(120, transfer) as agent:
        run = agent.start("pay bob")
        await asyncio.to_thread(inside.wait)
        run.cancel()
        await turns()
        proceed.set()
        await run

        assert run.state == State.CANCELLED
    assert balances(database) == UNCHANGED
