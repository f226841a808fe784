"""What the doctor says of pools, stores, limits, the server and telemetry, each as it really is."""

import contextlib
import shutil
import sqlite3
import tempfile

import pytest

from agentflow import Agent, tool
from agentflow.cli import doctor_service
from agentflow.cli.doctor_service import examine_service
from agentflow.settings import Settings
from agentflow.stores.redis_server import RedisServer
from agentflow.stores.sqlite import SqliteStore
from agentflow.stores.sqlite_file import APPLICATION_ID, MIGRATIONS
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ask_user
from agentflow.tools.registry import ToolRegistry
from agentflow.transports.auth import new_key
from tests.redis_servers import PROGRAMS, RedisProcess


async def found(subject, tools=(), *, offline=False, **sections):
    """The findings on a subject, as level and text."""
    findings = await examine_service(Settings(**sections), ToolRegistry(tools), offline=offline)
    return [(finding.level, finding.text) for finding in findings if finding.subject == subject]


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@tool(pool="slow")
def report() -> str:
    """Write a report."""


@tool(pool="slow")
def send() -> str:
    """Send a letter."""


@tool(pool="none")
async def on_the_loop() -> str:
    """Needs no thread."""


# -- pools -----------------------------------------------------------------------------------------------


async def test_a_pool_with_fewer_threads_than_one_run_may_call_tools_is_told():
    (told,) = await found("pools", [report, send, on_the_loop], pools={"slow": {"size": 2}})
    assert told == (
        "note",
        "pool 'slow' has 2 threads for report, send; one run may make 16 calls at once, and the rest wait: "
        "set pools.slow.size to 16 or more, or chain.max_parallel_tools lower",
    )
    enough = await found("pools", [report, send], pools={"slow": {"size": 2}}, chain={"max_parallel_tools": 2})
    assert enough == [("ok", "pool 'slow' has 2 threads for report, send")]


async def test_a_pool_that_is_not_configured_is_a_problem():
    ((level, text),) = await found("pools", [report])
    assert (level, "'report' runs in the pool 'slow', which is not configured" in text) == ("problem", True)


# -- the store -------------------------------------------------------------------------------------------


async def test_a_file_that_is_not_there_yet_is_not_made(home):
    ((level, text),) = await found("store")
    assert (level, "which the first run makes" in text) == ("ok", True)
    ((level, text),) = await found("store", memory={"url": str(home / "no" / "such.db")})
    assert (level, "make the folder" in text) == ("problem", True)
    assert list(home.iterdir()) == []


async def test_open_runs_of_a_file_are_told_and_nothing_is_changed(home):
    path = home / "runs.db"
    store = SqliteStore(path)
    async with Agent(
        model=ScriptedModel([call("ask_user", question="which?")]), tools=[ask_user], store=store
    ) as agent:
        await agent.chat("go")
    await store.aclose()
    before = path.read_bytes()
    ((level, text),) = await found("store", memory={"url": str(path)})
    assert (level, "open runs: 1. `agentflow runs --open` shows them" in text) == ("ok", True)
    assert path.read_bytes() == before


async def test_an_older_file_is_not_brought_up_to_date(home):
    path = home / "old.db"
    with sqlite3.connect(path) as db:
        db.executescript(f"{MIGRATIONS[0]}; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1")
    db.close()
    ((level, text),) = await found("store", memory={"url": str(path)})
    assert (level, "its tables are of version 1" in text) == ("ok", True)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA user_version = 99; CREATE TABLE runs (a)", "update agentflow"),
        ("PRAGMA application_id = 7; CREATE TABLE a (b)", "database of something else"),
    ],
)
async def test_a_newer_or_foreign_file_is_a_problem(home, statement, words):
    path = home / "other.db"
    with sqlite3.connect(path) as db:
        db.executescript(f"PRAGMA application_id = {APPLICATION_ID}; {statement}")
    db.close()
    ((level, text),) = await found("store", memory={"url": str(path)})
    assert (level, words in text) == ("problem", True)


async def test_a_folder_in_the_place_of_the_file_is_a_problem(home):
    ((level, _),) = await found("store", memory={"url": str(home)})
    assert level == "problem"


async def test_a_store_in_memory_keeps_nothing():
    ((level, text),) = await found("store", memory={"store": "in_memory"})
    assert (level, "set memory.store" in text) == ("note", True)


@pytest.fixture
def redis():
    """Starts a server, with options; its socket needs a short path."""
    folder = tempfile.mkdtemp()
    servers = []

    def start(*options, **how):
        servers.append(RedisProcess(folder, PROGRAMS["redis8"], *options, **how))
        return servers[-1].url

    yield start
    for server in servers:
        server.kill()
    shutil.rmtree(folder)


async def test_a_redis_server_that_keeps_its_data_is_well_and_nothing_is_written_to_it(redis):
    memory = {"store": "redis", "url": redis()}
    ((level, text),) = await found("store", memory=memory)
    assert (level, ", version 8." in text) == ("ok", True)
    server = RedisServer(memory["url"], prefix="x", ttl=1.0, call_timeout=2.0, connections=1, require_aof=None)
    server._checked = True  # its own check would write
    assert await server.call("DBSIZE") == 0
    await server.aclose()


async def test_a_redis_server_without_an_append_only_file_is_a_problem_of_a_store_and_none_of_limits(redis):
    url = redis(aof=False)
    ((level, text),) = await found("store", memory={"store": "redis", "url": url})
    assert (level, "set appendonly yes" in text) == ("problem", True)
    _, (level, _) = await found("limits", limits={"url": url})
    assert level == "ok"


async def test_a_redis_server_that_is_too_old_is_a_problem(redis, monkeypatch):
    monkeypatch.setattr(doctor_service, "_OLDEST_REDIS", (99, 0))
    ((level, text),) = await found("store", memory={"store": "redis", "url": redis()})
    assert (level, "it has to be 99.0 or later" in text) == ("problem", True)


@pytest.mark.parametrize("memory", [{"url": "redis://127.0.0.1:1"}, {"url": "http://h"}, {}])
async def test_a_redis_server_that_cannot_be_had_is_a_problem(memory):
    ((level, _),) = await found("store", memory={"store": "redis", **memory})
    assert level == "problem"


async def test_offline_no_redis_server_is_asked():
    ((level, text),) = await found("store", memory={"store": "redis", "url": "redis://127.0.0.1:1"}, offline=True)
    assert (level, text.endswith("not tried (--offline)")) == ("ok", True)


# -- limits, the server, telemetry ---------------------------------------------------------------------------


async def test_limits_are_named():
    assert await found("limits", limits={"rates": {"cost": {"per": "user", "tokens": "1000/h"}}}) == [("ok", "cost")]


async def test_a_server_for_other_machines_without_keys_is_a_problem_and_with_keys_there_may_be_a_proxy():
    ((level, text),) = await found("server", server={"host": "0.0.0.0"})
    assert (level, "agentflow keys new" in text) == ("problem", True)
    open_to_all = {"host": "0.0.0.0", "keys": {"a": {"hash": new_key()[2], "user": "u"}}}
    assert await found("server", server=open_to_all) == [("ok", "listens on 0.0.0.0:8080, keys: 1")]
    ((level, text),) = await found("proxy", server=open_to_all)
    assert (level, "proxy_buffering off" in text) == ("note", True)
    ((level, text),) = await found("proxy", server=open_to_all | {"ping": 90})
    assert (level, text.endswith("set it lower")) == ("problem", True)
    assert await found("proxy") == []


async def test_telemetry_that_is_switched_on_has_to_be_installed(monkeypatch):
    both = {"traces": True, "metrics": True}
    assert await found("traces", telemetry=both) == [("ok", "on")]
    assert await found("metrics", telemetry=both) == [("ok", "on, at /metrics")]
    monkeypatch.setattr(doctor_service, "_EXPORTERS", {"traces": "no.such", "metrics": "nothing_like_it"})
    assert await found("traces", telemetry=both) == [("problem", "not installed: pip install 'agentflow-rx[otel]'")]
    ((level, _),) = await found("metrics", telemetry=both)
    assert level == "note"
    assert await found("metrics", telemetry={"metrics": False}) == [("ok", "off (telemetry.metrics)")]
