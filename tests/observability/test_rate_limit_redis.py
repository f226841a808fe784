"""Limits that several processes share on a real Redis server, which may be slow, frozen, or gone."""

import asyncio
import random
import subprocess
import sys
import time

import pytest

from agentflow.errors import RateLimitedError
from agentflow.observability.rate_limit import Limiter, Need, Quota
from agentflow.observability.rate_limit_redis import RedisLedger
from agentflow.streams import LoopClock
from tests.redis_servers import PROGRAMS, RedisProcess

RATE = Quota(2.0, 0.02)
PLACES = Quota(2.0)

_numbers = iter(range(1_000_000))


@pytest.fixture(scope="module", params=PROGRAMS)
def redis(request, tmp_path_factory):
    process = RedisProcess(tmp_path_factory.mktemp("limits"), PROGRAMS[request.param])
    yield process
    process.thaw()
    process.kill()


@pytest.fixture
def own_redis(tmp_path):
    process = RedisProcess(tmp_path, PROGRAMS["redis8"])
    yield process
    process.thaw()
    process.kill()


@pytest.fixture
async def limiters(redis):
    """Two that share their limits."""
    prefix = f"af:test{next(_numbers)}"
    made = [limiter(redis.url, prefix=prefix) for _ in range(2)]
    yield made
    for one in made:
        await one.aclose()


def limiter(url, **options):
    clock = LoopClock()
    return Limiter(RedisLedger(url, clock, **options), clock)


def rated(amount=1.0, quota=RATE):
    return Need("rate", "u", quota, amount)


def place(subject="u", quota=PLACES):
    return Need("place", subject, quota)


async def held(one, need):
    """The places of this need that are held on the server, as far as this one has told it."""
    await one._ledger._owner.drain(5.0)
    return await one._ledger._server.call("ZCARD", f"{one._ledger._server.prefix}:{need.key}")


async def test_what_one_takes_the_other_cannot_and_refusals_cost_nothing(limiters):
    one, other = limiters
    await one.acquire([rated(1.5)])
    with pytest.raises(RateLimitedError) as refused:
        await other.acquire([place(), rated()])
    assert refused.value.retry_after == pytest.approx(25.0, abs=1.0)
    assert await held(other, place()) == 0
    await other.acquire([place(), rated(0.5)])
    with pytest.raises(RateLimitedError, match="allows 2 at once"):
        await other.acquire([rated(3.0)])


async def test_places_are_shared_given_back_and_waited_for(limiters):
    one, other = limiters
    first, second = await one.acquire([place()]), await other.acquire([place()])
    with pytest.raises(RateLimitedError):
        await one.acquire([place()])
    waiting = asyncio.gather(other.acquire([place()], 30.0))
    await asyncio.sleep(0)
    first.release()
    (third,) = await waiting
    for grant in (second, third):
        grant.release()
    await held(one, place())
    assert await held(other, place()) == 0


async def test_real_use_is_settled_for_all(limiters):
    one, other = limiters
    grant = await one.acquire([Need("a.tokens", "u", RATE, 1.0)])
    grant.settle("tokens", 3.0)
    await one._ledger._owner.drain(5.0)
    with pytest.raises(RateLimitedError) as refused:
        await other.acquire([Need("a.tokens", "u", RATE, 0.0)])
    assert refused.value.retry_after == pytest.approx(100.0, abs=2.0)


async def test_places_that_are_held_all_the_same_count(limiters):
    one, other = limiters
    grants = [one.hold([place()]) for _ in range(3)]
    assert await held(one, place()) == 3
    with pytest.raises(RateLimitedError):
        await other.acquire([place()])
    for grant in grants:
        grant.release()
    assert await held(one, place()) == 0


async def test_places_are_renewed_while_they_are_held_and_lapse_with_their_process(redis):
    prefix = f"af:test{next(_numbers)}"
    dead, alive, other = (limiter(redis.url, prefix=prefix, lease=0.3) for _ in range(3))
    await dead.acquire([place()])
    grant = await alive.acquire([place()])
    await dead.aclose()
    kept = await other.acquire([place()], 30.0)  # when the dead one's has lapsed
    with pytest.raises(RateLimitedError):
        await other.acquire([place()], 1.0)  # longer than a lease
    for one in (grant, kept):
        one.release()
    for one in (alive, other):
        await one.aclose()


async def test_a_thousand_cancels_leave_no_place_and_no_charge(limiters):
    one, _ = limiters
    chance = random.Random(7)
    many, need = Quota(1e6, 0.001), place(quota=Quota(1e6))

    async def work():
        grant = await one.acquire([need, rated(1.0, many)], 5.0)
        grant.release()

    loop = asyncio.get_running_loop()
    tasks = []
    for _ in range(1000):
        task = loop.create_task(work())
        tasks.append(task)
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait(tasks)
    done = sum(not task.cancelled() for task in tasks)
    assert await held(one, need) == 0
    level = await one._ledger._server.call("HGET", f"{one._ledger._server.prefix}:rate:u", "level")
    assert float(level or 1e6) == pytest.approx(1e6 - done, abs=1.0)
    assert done < 1000


TAKER = """
import asyncio, sys
from agentflow.errors import RateLimitedError
from agentflow.observability.rate_limit import Limiter, Need, Quota
from agentflow.observability.rate_limit_redis import RedisLedger
from agentflow.streams import LoopClock

async def main(url, prefix):
    clock = LoopClock()
    limiter = Limiter(RedisLedger(url, clock, prefix=prefix, call_timeout=10.0), clock)
    need, taken = Need("rate", "u", Quota(50.0, 20.0)), 0

    async def take():
        nonlocal taken
        try:
            await limiter.acquire([need])
        except RateLimitedError:
            return
        taken += 1

    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(40):
        await asyncio.gather(*(take() for _ in range(25)))
    print(taken, flush=True)
    await limiter.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


def test_four_processes_together_take_no_more_than_the_limit(redis):
    prefix = f"af:test{next(_numbers)}"
    command = [sys.executable, "-c", TAKER, redis.url, prefix]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    taken = sum(int(process.communicate()[0]) for process in processes)
    elapsed = time.monotonic() - began
    assert 50 <= taken <= 50 + 20 * elapsed + 1


async def test_while_the_server_is_down_each_process_keeps_to_the_limits_by_itself(own_redis, caplog):
    one = limiter(own_redis.url, call_timeout=0.2)
    grant = await one.acquire([rated(), place()])
    own_redis.freeze()
    for _ in range(2):
        local = await one.acquire([rated(), place()])
        local.release()
    with pytest.raises(RateLimitedError):
        await one.acquire([rated()])
    grant.settle("none", 1.0)
    grant.release()
    own_redis.thaw()
    assert len([record for record in caplog.records if "each process keeps to them by itself" in record.message]) == 1
    await one.aclose()


async def test_what_speaks_against_a_store_does_not_against_limits(tmp_path, caplog):
    process = RedisProcess(tmp_path, PROGRAMS["redis8"], aof=False)
    one = limiter(process.url)
    await one.acquire([rated()])
    await one.aclose()
    process.kill()
    assert caplog.records == []


async def test_or_nothing_is_let_through(own_redis):
    one = limiter(own_redis.url, call_timeout=0.2, when_down="refuse")
    own_redis.kill()
    with pytest.raises(RateLimitedError, match="cannot be checked") as refused:
        await one.acquire([rated()])
    assert refused.value.retry_after == 5.0
    await one.aclose()
