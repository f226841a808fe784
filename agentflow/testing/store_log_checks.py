"""The store suite's checks of the event log and of the runs: order, atomicity, followers, leases.

Each check takes a `Factory` whose stores share data that nobody else uses, and raises `AssertionError`.
"""

import asyncio
import contextlib

from agentflow.errors import LeaseLostError, RunNotFoundError, StoreError
from agentflow.events import TERMINAL_TYPES
from agentflow.stores.base import RunRecord, Store
from agentflow.testing.store_probe import (
    HOSTILE,
    KEY,
    LONG,
    PATIENCE,
    SHORT,
    Factory,
    clients,
    end,
    log,
    refused,
    same,
    true,
    turn,
    until,
)


async def an_append_is_read_back_from_any_cursor_with_any_limit(make: Factory) -> None:
    """Also by another client, and after all have closed."""
    events = log("r", count=7)
    async with clients(make) as (one, other):
        await one.append("r", events[:2])
        await one.append("r", events[2:])
        for store in (one, other):
            for after in range(-1, 9):
                for limit in (1, 3, 100):
                    found = list(await store.read("r", after, limit))
                    same(found, events[max(after, 0) :][:limit], f"read(after={after}, limit={limit})")
            same(await store.last("r"), 7, "last of a run with 7 events")
            same(await store.last("other"), None, "last of an unknown run")
            same(list(await store.read("other", 0, 10)), [], "events of an unknown run")
    async with clients(make, 1) as (again,):
        same(list(await again.read("r", 0, 100)), events, "the log in a store that was opened again")


async def an_append_that_does_not_continue_the_log_adds_nothing(make: Factory) -> None:
    """Whatever is wrong with it: a gap, a repeat, an order, a beginning."""
    async with clients(make, 1) as (store,):
        events = log("r", count=4)
        for bad in (events[1:], [events[0], events[2]], [events[0], events[0]], events[::-1]):
            await refused(store.append("r", bad), StoreError, f"append of {[e.seq for e in bad]} to an empty log")
        same(await store.last("r"), None, "last after appends that were refused")
        await store.append("r", events)
        await refused(store.append("r", events[:1]), StoreError, "append of 1 after 4")
        await refused(store.append("r", log("r", 6)), StoreError, "append of 6 after 4")
        same(list(await store.read("r", 0, 100)), events, "the log after appends that were refused")


async def what_is_written_comes_back_unchanged(make: Factory) -> None:
    """Hostile texts, as content and as ids, and an event near the limit of its size."""
    async with clients(make, 1) as (store,):
        for number, text in enumerate((*HOSTILE, "é" * 120_000)):
            run_id = text[:40] + str(number)
            events = log(run_id, count=2, text=text)
            await store.append(run_id, events)
            same(list(await store.read(run_id, 0, 10)), events, f"the log of run {run_id!r}")
            same(await store.last(run_id[:-1]), None, "a run of nearly the same id")


async def of_two_appends_with_the_same_number_one_is_refused(make: Factory) -> None:
    """Two clients write one run at once: what each was told is what the log says."""
    async with clients(make) as stores:
        for seq in range(1, 21):
            texts = [f"{seq} by client {number}" for number in range(len(stores))]
            results = await asyncio.gather(
                *(store.append("r", log("r", seq, text=text)) for store, text in zip(stores, texts, strict=True)),
                return_exceptions=True,
            )
            done = [text for text, result in zip(texts, results, strict=True) if result is None]
            found = [getattr(event, "text", "") for event in await stores[0].read("r", seq - 1, 10)]
            same(found, done, f"event {seq}, which two clients appended, and which were told that it was done")


async def many_runs_are_written_at_once(make: Factory) -> None:
    """40 runs by two clients, each in its order, none in another's log."""
    async with clients(make) as stores:

        async def write(store: Store, run_id: str) -> None:
            for seq in range(1, 30, 3):
                await store.append(run_id, log(run_id, seq, 3, text=run_id))

        run_ids = [f"r{number}" for number in range(40)]
        await asyncio.gather(*(write(stores[n % 2], run_id) for n, run_id in enumerate(run_ids)))
        for run_id in run_ids:
            same(list(await stores[0].read(run_id, 0, 100)), log(run_id, 1, 30, text=run_id), f"the log of {run_id}")


async def a_cancelled_append_is_done_or_not(make: Factory) -> None:
    """Wherever the cancel hits, the log stays whole and its writer can go on from what `last` says."""
    async with clients(make, 1) as (store,):

        async def write(seq: int) -> None:
            with contextlib.suppress(StoreError):  # where an append that was cancelled before comes in late
                await store.append("r", log("r", seq, 2))

        seq = 0
        for turns in range(40):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(write(seq + 1))
                for _ in range(turns % 8):
                    await asyncio.sleep(0)
                task.cancel()
            last = await store.last("r") or 0
            true(last in (seq, seq + 2), f"last is {last}, after {seq} and a cancelled append of two")
            seq = last
        numbers = [event.seq for event in await store.read("r", 0, 100)]
        same(numbers, [*range(1, len(numbers) + 1)], "the log's numbers")
        true(len(numbers) in (seq, seq + 2), f"there are {len(numbers)} events, after {seq} and a cancelled append")


async def a_follower_at_another_client_is_woken(make: Factory) -> None:
    """Three readers from three cursors, by read and wait alone, each see what comes."""
    async with clients(make) as (writer, reader):
        await writer.append("r", log("r", 1, 2))

        async def follow(after: int) -> list[int]:
            seen: list[int] = []
            while True:
                events = await reader.read("r", after, 2)
                seen += [event.seq for event in events]
                if events and events[-1].type in TERMINAL_TYPES:
                    return seen
                after = seen[-1] if seen else after
                await reader.wait("r", after)
                await asyncio.sleep(0)  # others' turn, should the wait return early again and again

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            tasks = [group.create_task(follow(after)) for after in (0, 1, 5)]
            leaver = group.create_task(reader.wait("r", 99))
            for seq in range(3, 10):
                await asyncio.sleep(0)  # the readers' turn
                await reader.last("r")
                await writer.append("r", log("r", seq))
            leaver.cancel()
            await writer.append("r", [end("r", 10)])
        same([task.result()[-1] for task in tasks], [10, 10, 10], "the last event that each reader saw")
        same([len(task.result()) for task in tasks], [10, 9, 5], "how many events each reader saw")


async def waiting_for_a_run_without_events_is_an_error(make: Factory) -> None:
    """It may have expired, and then nothing would ever come."""
    async with clients(make, 1) as (store,):
        await refused(store.wait("gone", 0), RunNotFoundError, "wait for an unknown run")


async def runs_are_listed_the_newest_first_in_pages(make: Factory) -> None:
    """All of them, or those that are open; a run is known from its first event, its session, or its lease on."""
    async with clients(make) as (store, other):
        for number in range(5):
            await store.append(f"r{number}", log(f"r{number}"))
        await store.append("r1", [end("r1", 2)])
        await store.open_session(KEY, "opened")
        await store.acquire_lease("leased", "me", LONG)
        everything = ["leased", "opened", "r4", "r3", "r2", "r1", "r0"]
        for open_only in (False, True):
            found: list[RunRecord] = []
            before = None
            while page := await other.list_runs(before=before, limit=2, open_only=open_only):
                found += page
                before = page[-1].number
            expected = [run_id for run_id in everything if not (open_only and run_id == "r1")]
            same([record.run_id for record in found], expected, f"list_runs(open_only={open_only})")
            for record in found:
                same(await store.find_run(record.run_id), record, f"find_run({record.run_id!r})")
        records = {record.run_id: record for record in await store.list_runs()}
        same([records[run_id].last for run_id in everything], [0, 0, 1, 1, 1, 2, 1], "RunRecord.last")
        same([run_id for run_id, record in records.items() if record.ended], ["r1"], "the runs that have ended")
        same([r.session for r in records.values() if r.session is not None], [KEY], "RunRecord.session")
        same(await store.find_run("unknown"), None, "find_run of an unknown run")


async def a_run_that_left_nothing_is_forgotten(make: Factory) -> None:
    """It opened a session or had a lease, and gave it back without an event."""
    async with clients(make, 1) as (store,):
        await store.open_session(KEY, "r")
        token = await store.acquire_lease("r", "me", LONG)
        await store.close_session(KEY, "r", None)
        true(await store.find_run("r"), "a leased run is known")
        await store.release_lease("r", token or 0)
        same(await store.find_run("r"), None, "a run without events, session and lease")


async def the_events_that_end_a_run_are_kept_until_they_are_appended(make: Factory) -> None:
    """So that a recovery can append them where the run's process died between the two writes."""
    async with clients(make) as (store, other):
        await store.open_session(KEY, "r")
        await store.append("r", log("r"))
        closing = (*log("r", 2), end("r", 3))
        await store.close_session(KEY, "r", turn("r"), closing)
        record = await other.find_run("r")
        same(record.closing if record else None, closing, "RunRecord.closing after close_session")
        await other.append("r", closing)
        record = await store.find_run("r")
        same((record.closing, record.ended) if record else None, ((), True), "closing and ended after the append")


async def who_has_lost_a_run_does_not_end_it(make: Factory) -> None:
    """It neither stores a turn nor announces an end, and the session stays the new owner's."""
    async with clients(make) as (store, other):
        old = await store.acquire_lease("r", "a", LONG) or 0
        await store.open_session(KEY, "r")
        await store.append("r", log("r"))
        await store.release_lease("r", old)
        closing = (end("r", 2),)
        await refused(
            store.close_session(KEY, "r", turn("r"), closing, token=old), LeaseLostError, "close_session without lease"
        )
        new = await other.acquire_lease("r", "b", LONG) or 0
        await refused(
            store.close_session(KEY, "r", turn("r"), closing, token=old), LeaseLostError, "close_session by another"
        )
        found, record = await store.find_session(KEY), await store.find_run("r")
        same((found.active_run, found.version) if found else None, ("r", 0), "the session after it was refused")
        same(record.closing if record else None, (), "RunRecord.closing after it was refused")
        await other.close_session(KEY, "r", turn("r"), closing, token=new)
        found = await store.find_session(KEY)
        same((found.active_run, found.version) if found else None, (None, 1), "the session its owner has closed")


async def one_owner_has_the_lease(make: Factory) -> None:
    """Until it releases it; asking again keeps it, and every new lease has a higher token."""
    async with clients(make) as (store, other):
        tokens = [await store.acquire_lease("r", "a", LONG), await other.acquire_lease("r", "a", LONG)]
        true(tokens[0] is not None and tokens[0] == tokens[1], f"one owner got one token, not {tokens}")
        first = tokens[0] or 0
        same(await other.acquire_lease("r", "b", LONG), None, "acquire_lease of what another holds")
        await store.renew_lease("r", first, LONG)
        await other.release_lease("r", first + 1)
        same(await other.acquire_lease("r", "b", LONG), None, "acquire_lease after another token was released")
        await store.append("r", log("r"), token=first)
        await store.release_lease("r", first)
        await store.release_lease("r", first)
        await refused(store.renew_lease("r", first, LONG), LeaseLostError, "renewal of a released lease")
        await refused(store.append("r", log("r", 2), token=first), LeaseLostError, "append with a released lease")
        second = await other.acquire_lease("r", "b", LONG) or 0
        true(second > first, f"the token {second} is higher than the one before, {first}")
        await refused(store.renew_lease("other", 1, LONG), LeaseLostError, "renewal of a lease of an unknown run")


async def a_lapsed_lease_is_taken_over_and_its_late_writes_are_refused(make: Factory) -> None:
    """The old owner finds out by its next append or renewal, and nothing of it is in the log."""
    async with clients(make) as (old, new):
        first = await old.acquire_lease("r", "old", SHORT) or 0
        await old.append("r", log("r"), token=first)
        await until(lambda: new.acquire_lease("r", "new", LONG), "a lapsed lease is taken over")
        await refused(old.append("r", log("r", 2), token=first), LeaseLostError, "append of the old owner")
        await refused(old.renew_lease("r", first, LONG), LeaseLostError, "renewal by the old owner")
        await old.release_lease("r", first)
        second = await new.acquire_lease("r", "new", LONG)
        true((second or 0) > first, f"the token {second} is higher than the one before, {first}")
        await new.append("r", log("r", 2), token=second)
        same(await old.last("r"), 2, "last after the new owner's append")


LOG_CHECKS = (
    an_append_is_read_back_from_any_cursor_with_any_limit,
    an_append_that_does_not_continue_the_log_adds_nothing,
    what_is_written_comes_back_unchanged,
    of_two_appends_with_the_same_number_one_is_refused,
    many_runs_are_written_at_once,
    a_cancelled_append_is_done_or_not,
    a_follower_at_another_client_is_woken,
    waiting_for_a_run_without_events_is_an_error,
    runs_are_listed_the_newest_first_in_pages,
    a_run_that_left_nothing_is_forgotten,
    the_events_that_end_a_run_are_kept_until_they_are_appended,
    who_has_lost_a_run_does_not_end_it,
    one_owner_has_the_lease,
    a_lapsed_lease_is_taken_over_and_its_late_writes_are_refused,
)
