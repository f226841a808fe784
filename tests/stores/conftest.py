"""Redis servers for the tests of stores: one of each program for all, and others for tests that torment theirs."""

import itertools

import pytest

from agentflow.stores.redis import RedisStore
from agentflow.stores.redis_server import RedisServer
from tests.redis_servers import PROGRAMS, RedisProcess

_numbers = itertools.count()


@pytest.fixture(scope="session", params=PROGRAMS)
def redis_process(request, tmp_path_factory):
    process = RedisProcess(tmp_path_factory.mktemp("redis"), PROGRAMS[request.param])
    yield process
    process.kill()


@pytest.fixture
def prefix():
    """Keys that nobody else uses."""
    return f"test{next(_numbers)}"


@pytest.fixture
async def redis_store(redis_process, prefix):
    store = RedisStore(redis_process.url, prefix=prefix)
    yield store
    await store.aclose()


@pytest.fixture
async def redis_server(redis_process, prefix):
    """The server behind `redis_store`, for what only tests ask it."""
    server = raw(redis_process.url, prefix)
    yield server
    await server.aclose()


@pytest.fixture
def own_redis(tmp_path):
    """A server for this test alone, which it may do anything to."""
    process = RedisProcess(tmp_path, PROGRAMS["redis8"])
    yield process
    process.thaw()
    process.kill()


def raw(url, prefix="agentflow", **options):
    defaults = {"ttl": 3600.0, "call_timeout": 10.0, "connections": 4, "require_aof": False}
    return RedisServer(url, prefix=prefix, **(defaults | options))


def give(store, seconds):
    """Let the calls of a store that is in use end after so many seconds."""
    store._server.call_timeout = seconds
