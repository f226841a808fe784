"""The server as the store sees it: calls with a deadline, none mixed up, errors in words, checks at the start."""

import asyncio
import random
import subprocess
import sys
from collections import Counter

import pytest
import redis.exceptions

from agentflow.errors import ConfigError, StoreError, StoreFormatError
from agentflow.stores.redis_server import RedisServer, Script, unpacked
from agentflow.testing.store_probe import PATIENCE, until
from tests.builders import turns
from tests.redis_servers import PROGRAMS, RedisProcess
from tests.stores.conftest import raw


async def names(server):
    """The connections that the server has, but for the one that asks."""
    listed = await server.call("CLIENT", "LIST")
    own = await server.call("CLIENT", "ID")
    return [line for line in listed.decode().splitlines() if f"id={own} " not in line]


# -- calls -----------------------------------------------------------------------------------------------


async def test_a_script_is_sent_whole_only_when_the_server_does_not_know_it(redis_server):
    script = Script(f"return {{ARGV[1], KEYS[1], ARGV[3], {random.random()}}}")
    for _ in range(2):
        assert (await redis_server.run(script, "k", "a"))[:3] == [redis_server.prefix.encode(), b"k", b"a"]
        known = await redis_server.call("SCRIPT", "EXISTS", script.sha)
        assert known == [1]
        await redis_server.call("SCRIPT", "FLUSH")


async def test_no_call_gets_the_reply_of_one_that_was_cancelled(redis_server):
    moments, wrong = random.Random(7), []

    async def ask(number):
        if await redis_server.call("ECHO", f"{number}") != f"{number}".encode():
            wrong.append(number)

    for number in range(1000):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(ask(number))
            group.create_task(ask(-number))
            await turns(moments.randrange(8))
            task.cancel()
    assert wrong == []
    assert len(await names(redis_server)) <= 4


async def test_a_cancel_is_heard_wherever_it_hits(redis_server):
    outcomes = []
    for moment in range(40):
        task = asyncio.get_running_loop().create_task(redis_server.call("ECHO", "x" * 100_000))
        await turns(moment)
        asked = task.cancel()
        await asyncio.wait([task])
        outcomes.append(asked == task.cancelled())
    assert all(outcomes)


async def test_a_call_that_is_given_up_before_it_was_sent_never_is_and_takes_no_other_with_it(redis_process, prefix):
    server = raw(redis_process.url, prefix, connections=1)
    await server.call("PING")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(server.call("RPUSH", prefix, number)) for number in range(5)]
        await turns(1)
        tasks[0].cancel()
        tasks[3].cancel()
    assert await server.call("LRANGE", prefix, 0, -1) == [b"1", b"2", b"4"]
    await server.aclose()


async def test_too_many_waiting_calls_are_refused(redis_process, redis_server, monkeypatch):
    server = raw(redis_process.url, connections=1)
    await server.call("PING")
    monkeypatch.setattr("agentflow.stores.redis_server.MAX_WAITING_CALLS", 10)
    replies = await asyncio.gather(*(server.call("ECHO", "x") for _ in range(20)), return_exceptions=True)
    assert [reply for reply in replies if reply == b"x"] == [b"x"] * 10
    assert {str(reply).partition(": ")[2] for reply in replies if reply != b"x"} == {
        "10 calls wait for it already; try again in a while"
    }
    await server.aclose()


async def test_closing_ends_the_calls_that_are_under_way(own_redis):
    server = raw(own_redis.url, connections=1)
    await server.call("PING")
    own_redis.freeze()
    calls = [asyncio.get_running_loop().create_task(server.call("PING")) for _ in range(150)]
    await turns()
    await server.aclose()
    assert {type(error) for error in await asyncio.gather(*calls, return_exceptions=True)} == {StoreError}


async def test_there_are_never_more_connections_than_allowed(redis_process, redis_server):
    server = raw(redis_process.url, connections=3)
    before = len(await names(redis_server))
    await asyncio.gather(*(server.call("ECHO", number) for number in range(100)))
    assert len(await names(redis_server)) - before <= 3
    await server.aclose()
    await server.aclose()

    async def closed():
        return len(await names(redis_server)) == before

    await until(closed, "the server has seen that the connections were closed")


async def test_whoever_waits_for_a_connection_gets_one_in_turn(redis_process, prefix):
    server, done = raw(redis_process.url, prefix, connections=1), []

    async def ask(name):
        for _ in range(20):
            await server.call("ECHO", name)
            done.append(name)

    async with asyncio.TaskGroup() as group:
        for name in "abcdefgh":
            group.create_task(ask(name))
    await server.aclose()
    for count in range(8, len(done) + 1):
        had = Counter(done[:count])
        assert max(had.values()) - min(had[name] for name in "abcdefgh") <= 2, done


def test_a_server_is_used_by_one_loop_after_another(redis_process):
    server = raw(redis_process.url)
    assert [asyncio.run(server.call("ECHO", text)) for text in ("a", "b")] == [b"a", b"b"]


# -- a server that fails ---------------------------------------------------------------------------------


async def test_a_frozen_server_is_given_up_and_works_again_when_it_is_thawed(own_redis):
    server = raw(own_redis.url, connections=2)
    await asyncio.gather(server.call("PING"), server.call("PING"))
    own_redis.freeze()
    server.call_timeout = 0.05
    for _ in range(5):
        with pytest.raises(StoreError, match=r"did not answer within 0.05 s; whether it has done it is not known"):
            await server.call("INCR", "n")
    own_redis.thaw()
    server.call_timeout = PATIENCE
    assert await asyncio.gather(*(server.call("ECHO", number) for number in range(10))) == [
        f"{number}".encode() for number in range(10)
    ]
    await server.aclose()


async def test_a_connection_that_answers_nothing_is_given_up(own_redis):
    server = raw(own_redis.url, connections=1, call_timeout=0.05)
    own_redis.freeze()
    with pytest.raises(StoreError, match="did not answer"):
        await server.call("PING")
    own_redis.kill()
    own_redis.start()

    async def answers():
        try:
            return await server.call("PING") == b"PONG"
        except StoreError:
            return False

    await until(answers, "the server answers on a new connection")
    await server.aclose()


async def test_a_server_that_is_not_there_is_an_error_until_it_is(own_redis):
    server = raw(own_redis.url)
    await server.call("SET", "k", "v")
    own_redis.kill()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"the Redis server .*/s, database 0 failed"):
            await server.call("GET", "k")
    own_redis.start()
    assert await server.call("GET", "k") == b"v"
    await server.aclose()


async def test_connections_that_the_server_has_closed_are_replaced(redis_server):
    await asyncio.gather(*(redis_server.call("PING") for _ in range(4)))
    other = raw(redis_server_url(redis_server))
    await other.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert await asyncio.gather(*(redis_server.call("ECHO", "x") for _ in range(8))) == [b"x"] * 8
    await other.aclose()


def redis_server_url(server):
    return f"unix://{server.name.split()[3].rstrip(',')}"


async def test_a_server_that_is_loading_its_data_says_so(own_redis):
    server = raw(own_redis.url)
    await server.run(Script("for i = 1, 5000 do redis.call('SET', i, '') end"), "k")
    await server.aclose()
    own_redis.kill()
    # While it loads it looks at its connections after every 1,024 commands.
    own_redis.start("--key-load-delay", "200", until="server initialized")

    async def heard():
        try:
            await server.call("GET", "k")
        except StoreError as error:
            return "it is loading its data; try again" in str(error)

    await until(heard, "the server says that it is loading")
    await server.aclose()


async def test_the_words_of_an_error_say_what_to_do(own_redis):
    server = raw(own_redis.url)
    await server.call("SET", "text", "x")
    with pytest.raises(StoreFormatError, match="another prefix than 'agentflow'"):
        await server.run(Script("return redis.call('XLEN', KEYS[1])"), "text")
    await server.call("CONFIG", "SET", "maxmemory", 1)
    for write in (server.call("SET", "k", "v"), server.run(Script("return redis.call('SET', KEYS[1], '')"), "k")):
        with pytest.raises(StoreError, match="its memory is full"):
            await write
    await server.call("CONFIG", "SET", "maxmemory", 0)
    await server.call("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(StoreError, match="point the URL to the primary"):
        await server.call("SET", "k", "v")
    assert await server.call("GET", "text") == b"x"
    await server.call("REPLICAOF", "NO", "ONE")
    await server.call("ACL", "SETUSER", "guest", "on", ">secret", "~*", "+@all", "-set")
    await server.aclose()
    for password, words in (("secret", "must be allowed"), ("wrong", "refuses the user or the password")):
        guest = raw(own_redis.url.replace("unix://", f"unix://guest:{password}@"))
        with pytest.raises(StoreError, match=words) as caught:
            await guest.call("SET", "k", "v")
        assert password not in str(caught.value)
        await guest.aclose()


async def test_what_cannot_be_sent_hurts_nobody_else(redis_server):
    await redis_server.call("PING")
    texts = ["a", "\ud800", "b"]
    replies = await asyncio.gather(*(redis_server.call("ECHO", text) for text in texts), return_exceptions=True)
    assert (replies[0], replies[2]) == (b"a", b"b")
    assert isinstance(replies[1], StoreError)
    assert "surrogates" in str(replies[1])


def exceptions_of(module):
    return [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", [k for k in exceptions_of(redis.exceptions) if k.__module__ == "redis.exceptions"])
async def test_every_error_of_the_client_library_becomes_a_store_error(kind, redis_server):
    if not issubclass(kind, redis.exceptions.RedisError):
        assert kind.__name__ in {  # of clusters and of misused clients, which this is not
            "ChildDeadlockedError", "IncorrectPolicyType", "RedisClusterException", "SlotNotCoveredError",
            "CrossSlotTransactionError", "InvalidPipelineStack",
        }  # fmt: skip
        return
    error = kind.__new__(kind)
    Exception.__init__(error, "it was to be")
    with pytest.raises(StoreError, match="the Redis server"), redis_server.translated():
        raise error


def test_what_cannot_be_decoded_is_left_alone():
    def decode(data):
        return __import__("msgspec").json.decode(data)

    assert unpacked(decode, b"[1]", "a list") == [1]
    with pytest.raises(StoreFormatError, match="a list cannot be read"):
        unpacked(decode, b"[1", "a list")


# -- what is checked at the start ------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_server_that_forgets_is_warned_of_and_refused_if_asked(program, tmp_path, caplog):
    process = RedisProcess(tmp_path, PROGRAMS[program], "--maxmemory-policy", "allkeys-lru", aof=False)
    try:
        server, strict = raw(process.url), raw(process.url, require_aof=True)
        await asyncio.gather(*(server.call("PING") for _ in range(5)))
        assert [text.partition("database 0 ")[2] for text in server.warnings] == [
            "has no append-only file: runs are lost when it dies; set appendonly yes",
            "drops any key when its memory is full; set maxmemory-policy noeviction",
        ]
        assert caplog.messages == list(server.warnings)
        with pytest.raises(ConfigError, match="append-only"):
            await strict.call("PING")
        await server.aclose()
        await strict.aclose()
    finally:
        process.kill()


async def test_a_server_that_does_not_tell_is_used_with_a_warning(redis_process, redis_server, prefix):
    await redis_server.call("ACL", "SETUSER", prefix, "on", ">secret", "~*", "+@all", "-info")
    server = raw(redis_process.url.replace("unix://", f"unix://{prefix}:secret@"), prefix)
    assert await server.call("PING") == b"PONG"
    assert [text for text in server.warnings if "does not tell whether it keeps its data" in text]
    await redis_server.call("ACL", "DELUSER", prefix)
    await server.aclose()


async def test_a_server_that_keeps_everything_is_not_warned_of(redis_server):
    await redis_server.call("PING")
    assert redis_server.warnings == ()


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_cluster_is_refused(program, tmp_path):
    process = RedisProcess(tmp_path, PROGRAMS[program], "--cluster-enabled", "yes")
    try:
        server = raw(process.url)
        with pytest.raises(ConfigError, match="a member of a Redis Cluster"):
            await server.call("PING")
        await server.aclose()
    finally:
        process.kill()


async def test_data_of_a_newer_format_is_refused_and_left_alone(redis_server, redis_process, prefix):
    await redis_server.call("SET", f"{prefix}:format", "2")
    server = raw(redis_process.url, prefix)
    with pytest.raises(StoreFormatError, match="of format '2' under the prefix"):
        await server.call("PING")
    assert await redis_server.call("GET", f"{prefix}:format") == b"2"
    await server.aclose()


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost", "redis://:secret@localhost:port/0"])
def test_a_url_that_is_none_is_refused_without_its_secrets(url):
    with pytest.raises(ConfigError, match="redis://host:6379/0 is one") as caught:
        raw(url)
    assert "secret" not in str(caught.value)


def test_a_server_is_named_without_its_secrets():
    assert raw("redis://me:secret@example.test:7000/3").name == "the Redis server example.test:7000, database 3"
    assert isinstance(raw("rediss://example.test"), RedisServer)


def test_without_the_client_library_only_this_store_is_missing():
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "import agentflow, agentflow.cli\n"
        "try:\n    import agentflow.stores.redis\n"
        "except agentflow.errors.ConfigError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "the Redis store needs the package redis: pip install 'agentflow-rx[redis]'\n"


async def test_a_look_tells_the_version_and_what_speaks_against_the_server_and_writes_nothing(tmp_path_factory):
    process = RedisProcess(tmp_path_factory.mktemp("r"), PROGRAMS["redis8"], aof=False)
    server = RedisServer(process.url, prefix="look", ttl=1.0, call_timeout=2.0, connections=1, require_aof=True)
    other = RedisServer(process.url, prefix="other", ttl=1.0, call_timeout=2.0, connections=1, require_aof=None)
    try:
        version, (against,) = await server.look()
        assert version.startswith("8.")
        assert "appendonly yes" in against
        assert await other.call("KEYS", "look*") == []
        await other.call("SET", "look:format", "9")
        with pytest.raises(StoreFormatError, match="data of format '9'"):
            await server.look()
    finally:
        await server.aclose()
        await other.aclose()
        process.kill()
