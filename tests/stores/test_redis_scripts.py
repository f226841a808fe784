"""What all scripts rely on: keys in their slots, numbers that only grow, and that what has ended goes by itself."""

import re

from redis.crc import key_slot

from agentflow.stores.base import Fact, Outcome, OutcomeKey, SessionKey, Summary, cancel_letter
from agentflow.stores.redis import RedisStore
from agentflow.testing.store_probe import HOSTILE, KEY, LONG, end, fill, log, turn

ANOTHER = SessionKey("another", None)


async def do_everything(store):
    """One of each that the store keeps: of runs and sessions an ended one and one that goes on."""
    for key, run_id in ((KEY, "ended"), (ANOTHER, "open")):
        await store.acquire_lease(run_id, "me", LONG)
        session = await store.open_session(key, run_id)
        await store.append(run_id, log(run_id))
        await store.keep_summary(session, Summary(first=1, last=1, text="x", confidence=1.0))
        await store.send_letter(run_id, cancel_letter("user"))
        await store.mark_read(run_id, 1000.0)
    await store.close_session(KEY, "ended", turn("ended"), [end("ended", 2)])
    await store.append("ended", [end("ended", 2)])
    await fill(store, SessionKey("filled", "u"), "run")
    await store.claim_outcome(OutcomeKey("pay", "k"), "c")
    await store.keep_outcome(OutcomeKey("pay", "k"), "c", Outcome(run_id="ended", call_id="c", tool="pay", result=""))
    await store.put_facts([Fact(id="1", user_id="u", text="x"), Fact(id="2", user_id="u", text="y", superseded_by="1")])


async def keys_of(server):
    """All keys under the server's prefix, without it, and what is left of their time: -1 for as long as it takes."""
    keys = await server.call("KEYS", f"{server.prefix}:*")
    return {key.decode().removeprefix(f"{server.prefix}:"): await server.call("PTTL", key) for key in keys}


async def test_the_keys_of_a_run_have_one_slot_and_those_of_a_session_too(redis_store, redis_server):
    await do_everything(redis_store)
    slots = {}
    for key in await keys_of(redis_server):
        if found := re.match(r"(run|session|facts):(\{.*?\})", key):
            slots.setdefault(found[0], set()).add(key_slot(f"{redis_server.prefix}:{key}".encode()))
    assert len(slots) == 6
    assert [len(found) for found in slots.values()] == [1] * 6


async def test_what_has_ended_goes_with_its_time_and_what_goes_on_stays(redis_process, redis_server, prefix):
    store = RedisStore(redis_process.url, prefix=prefix, ttl=1000.0)
    await do_everything(store)
    await store.aclose()
    keys = await keys_of(redis_server)
    lasting = {key for key, left in keys.items() if left < 0}
    assert 50_000 < keys.pop("asked") <= 60_000
    assert all(900_000 < left <= 1_000_000 for key, left in keys.items() if key not in lasting)
    assert lasting == {
        "format", "number", "runs", "open", "ended", "idle", "sessions:", "sessions:=u",
        "run:{open}", "run:{open}:events", "run:{open}:inbox",
        'session:{[null,"another"]}', 'session:{[null,"another"]}:runs', 'session:{[null,"another"]}:summaries',
        "facts:{u}", "facts:{u}:order", "facts:{u}:superseded",
    }  # fmt: skip
    assert {key for key in keys if key.startswith("run:{ended}")} == {"run:{ended}", "run:{ended}:events"}
    assert "run:{open}:read" in keys


async def test_the_sets_that_name_what_has_gone_are_swept(redis_process, redis_server, prefix):
    store = RedisStore(redis_process.url, prefix=prefix, ttl=0.001)
    for number in range(15):
        key, run_id = SessionKey(f"s{number}", HOSTILE[number % 6]), f"r{number}"
        await store.open_session(key, run_id)
        await store.append(run_id, log(run_id))
        await store.close_session(key, run_id, turn(run_id))
        await store.append(run_id, [end(run_id, 2)])
    while await redis_server.call("DBSIZE") and any(left >= 0 for left in (await keys_of(redis_server)).values()):
        pass
    await store.append("last", log("last"))
    assert set(await keys_of(redis_server)) == {"format", "number", "runs", "open", "run:{last}", "run:{last}:events"}
    assert await redis_server.call("ZRANGE", f"{prefix}:runs", 0, -1) == [b"last"]
    assert [list(await store.list_sessions(user)) for user in HOSTILE] == [[]] * 6
    await store.aclose()


async def test_what_was_dropped_is_named_by_nothing(redis_store, redis_server):
    token = await redis_store.acquire_lease("leased", "me", LONG)
    await redis_store.release_lease("leased", token)
    await redis_store.open_session(KEY, "ended")
    await redis_store.append("ended", [*log("ended"), end("ended", 2)])
    await redis_store.close_session(KEY, "ended", turn("ended"))
    await redis_store.delete_session(KEY)
    await redis_store.open_session(KEY, "new")
    await redis_store.delete_session(KEY)
    await redis_store.close_session(KEY, "new", turn("new"))
    assert set(await keys_of(redis_server)) == {"format", "number", "asked"}


async def test_a_list_passes_over_what_has_gone_before_it_was_swept(redis_store, redis_server, prefix):
    for number in range(10):
        await fill(redis_store, SessionKey(f"s{number}", "u"), f"r{number}")
        await redis_store.append(f"r{number}", log(f"r{number}"))
    for number in (9, 8, 7, 5):
        await redis_server.call("DEL", f"{prefix}:run:{{r{number}}}", f'{prefix}:session:{{["u","s{number}"]}}')
    assert [record.run_id for record in await redis_store.list_runs(limit=3)] == ["r6", "r4", "r3"]
    assert [info.key.session_id for info in await redis_store.list_sessions("u", limit=3)] == ["s6", "s4", "s3"]


async def test_numbers_grow_also_when_the_server_has_lost_its_data(redis_store, redis_server, prefix):
    first = await redis_store.acquire_lease("r", "a", LONG)
    for key in await keys_of(redis_server):
        await redis_server.call("DEL", f"{prefix}:{key}")
    second = await redis_store.acquire_lease("r", "b", LONG)
    assert second > first
    await redis_server.call("SET", f"{prefix}:number", second + 10**9)  # as if the clock had been set back
    third, fourth = [await redis_store.acquire_lease(run_id, "b", LONG) for run_id in "xy"]
    assert fourth > third > second + 10**9
