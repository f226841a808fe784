"""The store suite's checks of sessions, outcomes and facts: who holds what, in which order, and whose it is.

Each check takes a `Factory` whose stores share data that nobody else uses, and raises `AssertionError`.
"""

import asyncio

from agentflow.errors import OutcomePendingError, SessionBusyError
from agentflow.stores.base import (
    MAX_FACTS,
    MAX_WAITING,
    BusyPolicy,
    Fact,
    Outcome,
    OutcomeKey,
    SessionInfo,
    SessionKey,
    Store,
    Summary,
)
from agentflow.testing.store_probe import (
    HOSTILE,
    KEY,
    PATIENCE,
    Factory,
    clients,
    end,
    fill,
    in_line,
    is_asked_to_end,
    log,
    refused,
    same,
    true,
    turn,
    until,
)

NOBODYS = SessionKey(KEY.session_id)  # the same id, of no user


async def a_session_grows_by_its_turns(make: Factory) -> None:
    """Storing a turn again changes nothing; all of it is there in a store that is opened again."""
    async with clients(make) as (store, other):
        for number, run_id in enumerate(("a", "b")):
            session = await store.open_session(KEY, run_id)
            same((session.key, session.version, len(session.turns)), (KEY, number, number), "the session")
            for client in (store, other):
                await client.close_session(KEY, run_id, turn(run_id))
        await store.open_session(KEY, "b")  # as a recovery does that cannot know
        await store.close_session(KEY, "b", turn("b", "otherwise"))
        await store.open_session(KEY, "c")
        await store.close_session(KEY, "c", None)
    async with clients(make, 1) as (again,):
        session = await again.open_session(KEY, "d")
        same((session.version, session.turns), (2, (turn("a"), turn("b"))), "version and turns")
        await again.close_session(KEY, "d", None)


async def only_the_run_that_holds_a_session_closes_it(make: Factory) -> None:
    """Another's close stores nothing and frees nothing; the holder may open again what it holds."""
    async with clients(make) as (store, other):
        await store.open_session(KEY, "a")
        await other.close_session(KEY, "b", turn("b"))
        await other.close_session(SessionKey("unknown"), "b", turn("b"))
        same((await other.open_session(KEY, "a")).version, 0, "the version after another's close")
        info = await store.find_session(KEY)
        same(info and (info.key, info.version, info.active_run), (KEY, 0, "a"), "the session as it is found")
        await refused(other.open_session(KEY, "b", busy="reject"), SessionBusyError, "opening a held session")
        await store.close_session(KEY, "a", turn("a"))
        info = await other.find_session(KEY)
        same(info and (info.version, info.active_run), (1, None), "the session as it is found when it is free")


async def _take(store: Store, run_id: str, order: list[tuple[str, int]], busy: BusyPolicy = "queue") -> None:
    session = await store.open_session(KEY, run_id, busy=busy)
    order.append((run_id, session.version))
    await asyncio.sleep(0)
    await store.close_session(KEY, run_id, turn(run_id))


async def a_busy_session_is_waited_for_first_come_first_served(make: Factory) -> None:
    """By runs of two clients, up to the limit; the next one is refused and hurts nobody."""
    async with clients(make) as stores:
        order: list[tuple[str, int]] = []
        run_ids = [f"r{number}" for number in range(MAX_WAITING)]
        await stores[0].open_session(KEY, "holder")
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for number, run_id in enumerate(run_ids):
                group.create_task(_take(stores[number % 2], run_id, order))
                await in_line(stores[0], run_id)
            for busy in ("queue", "supersede", "reject"):
                await refused(stores[1].open_session(KEY, "more", busy=busy), SessionBusyError, "a full line")
            same(await stores[0].find_run("more"), None, "a run that was refused")
            same(order, [], "who has the session while it is held")
            await stores[0].close_session(KEY, "holder", turn("holder"))
        same(order, [(run_id, number + 1) for number, run_id in enumerate(run_ids)], "who had the session, in order")


async def many_runs_share_a_session_and_no_turn_is_lost(make: Factory) -> None:
    """Each opens, closes and comes again; each finds the turns of all before it."""
    async with clients(make) as stores:
        order: list[tuple[str, int]] = []

        async def come_again(number: int) -> None:
            for again in range(5):
                await _take(stores[number % 2], f"r{number}-{again}", order)

        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(come_again(number) for number in range(MAX_WAITING)))
        same([version for _, version in order], [*range(5 * MAX_WAITING)], "the versions that the runs found")
        turns = await stores[0].read_turns(KEY, 0, 1000)
        same([kept.run_id for kept in turns], [run_id for run_id, _ in order], "the runs of the turns")


async def who_leaves_the_line_hurts_nobody(make: Factory) -> None:
    """Before it is its turn, or in the moment it is."""
    async with clients(make) as (store, other), asyncio.timeout(PATIENCE):
        await _leave(store, other, early=True)
        await _leave(store, other, early=False)


async def _leave(store: Store, other: Store, *, early: bool) -> None:
    holder, leaver, following = (f"{name} {early}" for name in ("holder", "leaver", "next"))

    async def forgotten() -> bool:
        return await store.find_run(leaver) is None

    await store.open_session(KEY, holder)
    async with asyncio.TaskGroup() as group:
        leaves = group.create_task(other.open_session(KEY, leaver))
        await in_line(store, leaver)
        follows = group.create_task(store.open_session(KEY, following))
        await in_line(store, following)
        if early:
            leaves.cancel()
            await until(forgotten, "a run that has left the line is forgotten")
        await store.close_session(KEY, holder, None)
        leaves.cancel()
        await asyncio.wait([leaves])
        if not leaves.cancelled():  # it was too late
            await other.close_session(KEY, leaver, None)
        same((await follows).version, 0, "the session of the next in line")
    await store.close_session(KEY, following, None)


async def who_supersedes_asks_all_before_it_to_end(make: Factory) -> None:
    """The holder and the line, and takes its turn behind them; who rejects does not wait."""
    async with clients(make) as (store, other), asyncio.timeout(PATIENCE):
        order: list[tuple[str, int]] = []
        await store.open_session(KEY, "holder")
        async with asyncio.TaskGroup() as group:
            group.create_task(_take(store, "waiting", order))
            await in_line(store, "waiting")
            await refused(other.open_session(KEY, "rejects", busy="reject"), SessionBusyError, "busy='reject'")
            group.create_task(_take(other, "supersedes", order, "supersede"))
            for run_id in ("holder", "waiting"):
                await is_asked_to_end(store, run_id, "superseded")
            await store.close_session(KEY, "holder", turn("holder"))
        same(order, [("waiting", 1), ("supersedes", 2)], "who had the session, in order")


async def turns_are_read_in_pages_and_a_run_may_ask_for_the_last_only(make: Factory) -> None:
    """Whatever is asked for, the version counts all of them."""
    async with clients(make) as (store, other):
        run_ids = [f"r{number}" for number in range(7)]
        await fill(store, KEY, *run_ids)
        for last_turns in (None, 0, 1, 3, 7, 100):
            session = await other.open_session(KEY, "x", last_turns=last_turns)
            expected = run_ids if last_turns is None else run_ids[max(7 - last_turns, 0) :]
            same((session.version, [t.run_id for t in session.turns]), (7, expected), f"last_turns={last_turns}")
        for after in range(-1, 9):
            page = await other.read_turns(KEY, after, 3)
            same([t.run_id for t in page], run_ids[max(after, 0) :][:3], f"read_turns(after={after}, limit=3)")
        same(list(await store.read_turns(NOBODYS, 0, 10)), [], "the turns of another's session")


async def each_user_has_own_sessions(make: Factory) -> None:
    """Whatever the ids look like, and who has none is nobody else; lists are the newest first, in pages."""
    async with clients(make) as (store, other):
        users = (None, "", "None", *HOSTILE)
        for user_id in users:
            for session_id in ("s", *HOSTILE, "x" * 128):
                run_id = f"{user_id!r} {session_id}"
                await fill(store, SessionKey(session_id, user_id), run_id)
                turns = await other.read_turns(SessionKey(session_id, user_id), 0, 10)
                same([kept.run_id for kept in turns], [run_id], f"session {session_id!r} of user {user_id!r}")
        for user_id in users:
            found: list[SessionInfo] = []
            before = None
            while page := await other.list_sessions(user_id, before=before, limit=3):
                found += page
                before = page[-1].number
            expected = [SessionKey(name, user_id) for name in ("s", *HOSTILE, "x" * 128)][::-1]
            same([info.key for info in found], expected, f"the sessions of user {user_id!r}")
            same([await store.find_session(info.key) for info in found], found, "find_session of what was listed")
        same(list(await store.list_sessions("unknown")), [], "the sessions of an unknown user")
        same(await store.find_session(SessionKey("s", "unknown")), None, "a session of an unknown user")


async def a_deleted_session_is_gone_with_its_finished_runs(make: Factory) -> None:
    """And only that one; a new one of the same key is another."""
    async with clients(make) as (store, other):
        for key, run_id in ((KEY, "mine"), (NOBODYS, "another's")):
            session = await store.open_session(key, run_id)
            await store.append(run_id, [*log(run_id), end(run_id, 2)])
            await store.close_session(key, run_id, turn(run_id))
        await other.delete_session(KEY)
        await other.delete_session(KEY)
        same(await store.find_session(KEY), None, "a deleted session")
        same([info.key for info in await store.list_sessions("u")], [], "the user's sessions")
        same(list(await store.read_turns(KEY, 0, 10)), [], "the turns of a deleted session")
        same((await store.last("mine"), await store.last("another's")), (None, 2), "last of the finished runs")
        same(len(await store.read_turns(NOBODYS, 0, 10)), 1, "the turns of another's session")
        session = await store.open_session(KEY, "new")
        same((session.version, session.turns, session.summaries), (0, (), ()), "a new session of the same key")


async def a_session_may_be_deleted_while_a_run_holds_it(make: Factory) -> None:
    """Its runs are asked to end, what the holder stores is dropped, and the next in line finds a new session."""
    async with clients(make) as (store, other), asyncio.timeout(PATIENCE):
        await fill(store, KEY, "before")
        await store.open_session(KEY, "holder")
        await store.append("holder", log("holder"))
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(store.open_session(KEY, "waiting"))
            await in_line(store, "waiting")
            await other.delete_session(KEY)
            for run_id in ("holder", "waiting"):
                await is_asked_to_end(store, run_id, "user")
            same((await other.find_session(KEY), len(await other.list_sessions("u"))), (None, 0), "what is found")
            true(not waiting.done(), "the next in line waits until the session is free")
            await store.close_session(KEY, "holder", turn("holder"))
            session = await waiting
            same((session.version, session.turns), (0, ()), "the session of the next in line")
        same(await store.last("holder"), 1, "last of the run that has not ended")
        await store.close_session(KEY, "waiting", turn("waiting"))
        same([kept.run_id for kept in await other.read_turns(KEY, 0, 9)], ["waiting"], "the turns of the new session")


async def a_summary_is_kept_with_the_session_it_was_made_from(make: Factory) -> None:
    """In the order of turns, one for the same turns; not if a turn came, nor in a new session of the same key."""
    async with clients(make) as (store, other):
        await fill(store, KEY, "a", "b", "c")
        session = await store.open_session(KEY, "d")
        late = Summary(first=2, last=3, text="later", confidence=0.5, facts=("f",), pinned=(HOSTILE[0],))
        for summary in (late, Summary(first=1, last=1, text="x", confidence=0.1)):
            true(await other.keep_summary(session, summary), "a summary is kept while a run holds the session")
        better = Summary(first=1, last=1, text="better", confidence=0.9, decisions=("d",), questions=("q",))
        info = await other.find_session(KEY)
        true(info and await other.keep_summary(info, better), "a summary is kept with what find_session gave")
        await store.close_session(KEY, "d", turn("d"))
        true(not await other.keep_summary(session, late), "no summary goes in after another turn was stored")
        session = await store.open_session(KEY, "e")
        same(session.summaries, (better, late), "the summaries")
        await store.close_session(KEY, "e", None)
        await store.delete_session(KEY)
        await fill(store, KEY, "a", "b", "c", "d")
        true(not await store.keep_summary(session, late), "no summary goes into a new session of the same key")
        same((await store.open_session(KEY, "f")).summaries, (), "the summaries of a new session")


async def an_effect_is_claimed_by_one_call_and_its_outcome_given_to_all(make: Factory) -> None:
    """The claimer may claim and keep again; another waits for nothing, but is told."""
    async with clients(make) as (store, other):
        key = OutcomeKey("pay", HOSTILE[0], "u")
        outcome = Outcome(run_id="r", call_id="a", tool="pay", result=f"[success]\n{HOSTILE[3]}", truncated=True)
        for client in (store, other):
            same(await client.claim_outcome(key, "a"), None, "the first call's claim")
            await refused(client.claim_outcome(key, "b"), OutcomePendingError, "another call's claim")
        await refused(other.keep_outcome(key, "b", outcome), OutcomePendingError, "keep_outcome of another call")
        await other.release_outcome(key, "b")
        await refused(other.claim_outcome(key, "b"), OutcomePendingError, "a claim after another's release")
        await store.keep_outcome(key, "a", outcome)
        await store.keep_outcome(key, "a", Outcome(run_id="r", call_id="a", tool="pay", result="otherwise"))
        await store.release_outcome(key, "a")
        for call_id in ("a", "b"):
            same(await other.claim_outcome(key, call_id), outcome, f"what call {call_id!r} is given")
    async with clients(make, 1) as (again,):
        same(await again.claim_outcome(key, "c"), outcome, "the outcome in a store that was opened again")


async def an_effect_that_was_not_done_is_free_again(make: Factory) -> None:
    """And keys of other tools and users are others."""
    async with clients(make) as (store, other):
        await store.claim_outcome(OutcomeKey("pay", "k"), "a")
        await store.release_outcome(OutcomeKey("pay", "k"), "a")
        same(await other.claim_outcome(OutcomeKey("pay", "k"), "b"), None, "a claim of a key that was released")
        for number, key in enumerate((OutcomeKey("pay", "k", ""), OutcomeKey("pay", "k", "u"), OutcomeKey("p", "ayk"))):
            same(await store.claim_outcome(key, f"c{number}"), None, f"a claim of {key!r}")


async def of_many_claims_at_once_one_is_given(make: Factory) -> None:
    """Ten calls at two clients."""
    async with clients(make) as stores:
        key = OutcomeKey("pay", "k")
        claims = (stores[number % 2].claim_outcome(key, f"c{number}") for number in range(10))
        results = await asyncio.gather(*claims, return_exceptions=True)
        same(sum(result is None for result in results), 1, f"how many got the key: {results!r}")
        same(sum(isinstance(result, OutcomePendingError) for result in results), 9, f"how many did not: {results!r}")


def _fact(number: object, user_id: str = "u", *, subject: str = "", superseded_by: str | None = None) -> Fact:
    return Fact(id=str(number), user_id=user_id, text=HOSTILE[1], subject=subject, superseded_by=superseded_by)


async def facts_are_kept_by_user_until_deleted(make: Factory) -> None:
    """In the order they came; a newer one and the one it supersedes go in together."""
    async with clients(make) as (store, other):
        await store.put_facts([_fact(2), _fact(1, subject="city"), _fact(1, "other")])
        old, new = _fact(1, subject="city", superseded_by="3"), _fact(3, subject="city")
        await store.put_facts([new, old])
        same(list(await other.list_facts("u")), [_fact(2), new], "the facts that hold")
        same(list(await other.list_facts("u", superseded=True)), [_fact(2), old, new], "all facts")
        await other.delete_fact("u", "1")
        await other.delete_fact("unknown", "2")
        same(list(await store.list_facts("u", superseded=True)), [_fact(2), new], "the facts after a delete")
        same(list(await store.list_facts("other")), [_fact(1, "other")], "another user's facts")
        await store.put_facts([])


async def facts_of_a_user_are_bounded(make: Factory) -> None:
    """Superseded ones go first, then the oldest; other users' are not touched."""
    async with clients(make, 1) as (store,):
        await store.put_facts([_fact("x", "other"), *(_fact(number) for number in range(MAX_FACTS))])
        await store.put_facts([_fact(5, superseded_by="new"), _fact("new")])
        numbers = [fact.id for fact in await store.list_facts("u", superseded=True)]
        same(numbers, [str(n) for n in range(MAX_FACTS) if n != 5] + ["new"], "the facts when one too many came")
        await store.put_facts([_fact("newer")])
        same((await store.list_facts("u"))[0], _fact(1), "the oldest fact when one more came")
        same(len(await store.list_facts("other")), 1, "another user's facts")


SESSION_CHECKS = (
    a_session_grows_by_its_turns,
    only_the_run_that_holds_a_session_closes_it,
    a_busy_session_is_waited_for_first_come_first_served,
    many_runs_share_a_session_and_no_turn_is_lost,
    who_leaves_the_line_hurts_nobody,
    who_supersedes_asks_all_before_it_to_end,
    turns_are_read_in_pages_and_a_run_may_ask_for_the_last_only,
    each_user_has_own_sessions,
    a_deleted_session_is_gone_with_its_finished_runs,
    a_session_may_be_deleted_while_a_run_holds_it,
    a_summary_is_kept_with_the_session_it_was_made_from,
    an_effect_is_claimed_by_one_call_and_its_outcome_given_to_all,
    an_effect_that_was_not_done_is_free_again,
    of_many_claims_at_once_one_is_given,
    facts_are_kept_by_user_until_deleted,
    facts_of_a_user_are_bounded,
)
