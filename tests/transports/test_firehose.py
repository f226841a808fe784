import asyncio

import msgspec
import pytest

from agentflow.events import DeltaEvent, InputEvent
from agentflow.transports.firehose import Firehose


def event(number, text=""):
    common = {"run_id": "r", "chain_id": "r", "session_id": "s", "path": ("agent",), "trace_id": "0" * 32}
    return InputEvent(**common, seq=number, text=text or f"{number}")


def texts(page):
    """Of each frame the text of its event; of a gap how many it says are missing."""
    events = [msgspec.json.decode(data.split(b"data: ")[1]) for data in page]
    return [event.get("text", event.get("missed")) for event in events]


def read(firehose, after):
    firehose.readers = firehose.readers or 1
    return asyncio.wait_for(firehose.page(after), 5)


async def test_every_reader_gets_each_event_once_and_in_order():
    firehose = Firehose()
    firehose.readers = 2
    for number in range(1, 4):
        firehose.see(event(number))
    page, after = await read(firehose, 0)
    assert (texts(page), after) == (["1", "2", "3"], 3)
    waiting = [asyncio.ensure_future(firehose.page(after)) for _ in range(2)]  # noqa: TID251  two readers that wait
    await asyncio.sleep(0)
    firehose.see(event(4))
    for page, after in await asyncio.gather(*waiting):
        assert (texts(page), after) == (["4"], 4)


async def test_deltas_are_not_among_them():
    firehose = Firehose()
    firehose.readers = 1
    common = {"run_id": "r", "chain_id": "r", "session_id": "s", "path": ("agent",), "trace_id": "0" * 32}
    firehose.see(DeltaEvent(**common, text="a", attempt=1))
    firehose.see(event(1))
    assert texts((await read(firehose, 0))[0]) == ["1"]


@pytest.mark.parametrize("bound", [{"max_events": 2}, {"max_bytes": 500}])
async def test_a_reader_that_fell_behind_is_told_how_many_it_has_missed(bound):
    firehose = Firehose(**bound)
    firehose.readers = 1
    for number in range(1, 11):
        firehose.see(event(number))
    page, after = await read(firehose, 3)
    missed, *rest = texts(page)
    assert (rest[-1], after) == ("10", 10)
    assert missed == 10 - 3 - len(rest)
    assert b"id:" not in page[0]
    assert firehose.missed == missed


async def test_what_comes_while_nobody_reads_is_counted_and_not_kept():
    firehose = Firehose()
    firehose.see(event(1))
    firehose.see(event(2))
    firehose.readers = 1
    assert firehose.position.endswith(":2")
    firehose.see(event(3))
    assert texts((await read(firehose, 0))[0]) == [2, "3"]


async def test_a_position_of_another_process_is_before_all():
    firehose = Firehose()
    firehose.see(event(1))
    assert firehose.after(firehose.epoch, 1) == 1
    assert firehose.after(firehose.epoch, 99) == 1
    assert firehose.after("0123456789abcdef", 99) == 0


async def test_a_page_is_bounded_but_holds_at_least_one_event():
    firehose = Firehose()
    firehose.readers = 1
    for number in range(1, 4):
        firehose.see(event(number, str(number) * 200_000))
    page, after = await read(firehose, 0)
    assert (len(page), after) == (1, 1)
    page, after = await read(firehose, after)
    assert (len(page), after) == (1, 2)
