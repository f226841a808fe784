"""The store suite's checks of what reaches a run from outside: letters to it, and that somebody reads it.

Each check takes a `Factory` whose stores share data that nobody else uses, and raises `AssertionError`.
"""

import asyncio

import msgspec

from agentflow.errors import LimitError
from agentflow.stores.base import MAX_LETTER_BYTES, MAX_LETTERS, Letter, cancel_letter
from agentflow.testing.store_probe import (
    HOSTILE,
    LONG,
    PATIENCE,
    SHORT,
    Factory,
    clients,
    end,
    is_asked_to_end,
    log,
    refused,
    same,
    true,
    until,
)


async def letters_lie_in_the_order_they_were_sent_until_they_are_deleted(make: Factory) -> None:
    """Whole, and seen by every client; of those with one id the first stays, and each run has its own."""
    async with clients(make) as (store, other):
        token = await store.acquire_lease("r", "me", LONG) or 0
        await store.append("another", log("another"))
        true(not await store.renew_lease("r", token, LONG), "no letters lie when none was sent")
        sent = [
            Letter(id="2", verb="amend", target="c", arguments={"a": [1, None, "\u00e9"]}, by="u"),
            Letter(id="1", verb="approve", target="c", arguments_hash="h"),
            *(Letter(id=text, verb="answer", text=text) for text in HOSTILE),
        ]
        for letter in sent:
            await other.send_letter("r", letter)
        await other.send_letter("r", Letter(id="1", verb="reject", target="c"))
        same(list(await store.list_letters("r")), sent, "the letters")
        true(await store.renew_lease("r", token, LONG), "the owner is told that letters lie")
        await store.delete_letters("r", ["1", "unknown"])
        same(list(await other.list_letters("r")), [sent[0], *sent[2:]], "the letters, but for a deleted one")
        await store.delete_letters("r", [letter.id for letter in sent])
        same((list(await store.list_letters("r")), list(await store.list_letters("another"))), ([], []), "none")
        true(not await store.renew_lease("r", token, LONG), "no letters lie when all were deleted")


async def a_run_is_asked_to_end_for_the_first_reason(make: Factory) -> None:
    """However often it is asked, from anywhere."""
    async with clients(make) as (store, other):
        await store.append("r", log("r"))
        await other.send_letter("r", cancel_letter("superseded"))
        await store.send_letter("r", cancel_letter("user"))
        await is_asked_to_end(store, "r", "superseded")


async def who_listens_hears_of_letters_from_any_client(make: Factory) -> None:
    """Time and again, of the runs he listens to, and until he stops."""
    async with clients(make) as (asking, working), asyncio.timeout(PATIENCE):
        heard = {run_id: asyncio.Event() for run_id in ("r", "another")}
        for run_id in heard:
            await working.append(run_id, log(run_id))
        leave = {run_id: working.listen(run_id, event.set) for run_id, event in heard.items()}
        for number, sender in enumerate((asking, working, asking)):
            await sender.send_letter("r", Letter(id=str(number), verb="answer"))
            await heard["r"].wait()
            same(len(await working.list_letters("r")), number + 1, "the letters that who has heard finds")
            heard["r"].clear()
        leave["r"]()
        await asking.send_letter("r", Letter(id="late", verb="answer"))
        await asking.send_letter("another", Letter(id="0", verb="answer"))
        await heard["another"].wait()
        true(not heard["r"].is_set(), "who has stopped listening hears nothing")
        leave["another"]()


async def an_inbox_has_bounds_and_room_for_a_cancel(make: Factory) -> None:
    """By number and by bytes; what is deleted makes room again."""
    async with clients(make, 1) as (store,):
        for run_id in ("many", "large"):
            await store.append(run_id, log(run_id))
        for number in range(MAX_LETTERS):
            await store.send_letter("many", Letter(id=str(number), verb="answer"))
        await store.send_letter("large", Letter(id="0", verb="answer", text="x" * (MAX_LETTER_BYTES // 2)))
        for run_id in ("many", "large"):
            more = Letter(id="more", verb="answer", text="x" * (MAX_LETTER_BYTES // 2))
            await refused(store.send_letter(run_id, more), LimitError, "a letter that has no room")
            await store.send_letter(run_id, cancel_letter("user"))
            await store.delete_letters(run_id, ["0", "1"])
            await store.send_letter(run_id, msgspec.structs.replace(more, text=""))
        same(len(await store.list_letters("many")), MAX_LETTERS, "letters, after one was refused")


async def letters_to_what_is_unknown_or_has_ended_are_not_kept(make: Factory) -> None:
    """They leave no trace that a later run of the same id would find; what lies in an inbox goes with its run."""
    async with clients(make, 1) as (store,):
        await store.append("ended", log("ended"))
        await store.send_letter("ended", Letter(id="1", verb="answer"))
        await store.append("ended", [end("ended", 2)])
        for run_id in ("ended", "unknown"):
            await store.send_letter(run_id, cancel_letter("user"))
            same(list(await store.list_letters(run_id)), [], f"letters to the {run_id} run")
            await store.delete_letters(run_id, ["cancel"])
        same(await store.find_run("unknown"), None, "an unknown run that was sent a letter")
        token = await store.acquire_lease("empty", "me", LONG) or 0
        await store.send_letter("empty", cancel_letter("user"))
        await store.release_lease("empty", token)
        for run_id in ("unknown", "empty"):
            await store.append(run_id, log(run_id))
            same(list(await store.list_letters(run_id)), [], f"letters to the new run {run_id}")


async def who_reads_a_run_counts_for_the_time_he_says(make: Factory) -> None:
    """At every client; a shorter time takes nothing from a longer one, and an ended run is not read."""
    async with clients(make) as (store, other):
        for run_id in ("r", "short", "ended"):
            await store.append(run_id, log(run_id))
        same([await store.read_for(run_id) for run_id in ("r", "unknown")], [0.0, 0.0], "read_for of what nobody reads")
        same(
            [await other.mark_read(run_id, LONG) for run_id in ("r", "ended", "unknown")], [True, True, False], "marks"
        )
        await store.mark_read("r", SHORT)
        true(LONG / 2 < await store.read_for("r") <= LONG, "the longest time counts")
        await store.append("ended", [end("ended", 2)])
        same((await store.read_for("ended"), await store.mark_read("ended", LONG)), (0.0, False), "an ended run")
        await store.mark_read("short", SHORT)
        true(await other.read_for("short") <= SHORT, "no more is left than was said")

        async def lapsed() -> bool:
            return await other.read_for("short") == 0.0

        await until(lapsed, "the time of a reader lapses")


LETTER_CHECKS = (
    letters_lie_in_the_order_they_were_sent_until_they_are_deleted,
    a_run_is_asked_to_end_for_the_first_reason,
    who_listens_hears_of_letters_from_any_client,
    an_inbox_has_bounds_and_room_for_a_cancel,
    letters_to_what_is_unknown_or_has_ended_are_not_kept,
    who_reads_a_run_counts_for_the_time_he_says,
)
