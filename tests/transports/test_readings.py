"""Who reads, how far behind, and what was sent."""

import gc

from agentflow.event_log import Reader
from agentflow.stores.in_memory import InMemoryStore
from agentflow.transports.readings import SLOW, Readings
from tests.transports.served import HandClock


def test_the_lag_is_that_of_the_reader_that_is_furthest_behind():
    store, readings = InMemoryStore(), Readings({"r1": 10, "r2": 4}.get)
    ahead, behind = Reader(store, "r1", 9), Reader(store, "r2")
    readings.add(ahead, "r1")
    readings.add(behind, "r2")
    assert (len(readings), readings.lag(), readings.resumes) == (2, 4, 1)
    behind.after = 4
    assert readings.lag() == 1


def test_a_reader_that_is_gone_is_forgotten_and_an_ended_run_has_no_lag():
    readings = Readings(lambda run_id: 0)
    reader = Reader(InMemoryStore(), "r1", 7)
    readings.add(reader, "r1")
    assert readings.lag() == 0
    del reader
    gc.collect()
    assert (len(readings), readings.lag()) == (0, 0)


def test_a_reader_is_slow_from_the_look_that_finds_it_so_until_one_that_does_not():
    clock = HandClock()
    readings = Readings({"r1": SLOW + 3, "r2": SLOW - 1}.get, clock)
    reader, other = Reader(InMemoryStore(), "r1", 1), Reader(InMemoryStore(), "r2")
    readings.add(reader, "r1")
    readings.add(other, "r2")
    assert readings.slow() == [{"run_id": "r1", "events": SLOW + 2, "seconds": 0.0}]
    clock.advance(5)
    assert readings.slow() == [{"run_id": "r1", "events": SLOW + 2, "seconds": 5.0}]
    reader.after = 4
    assert readings.slow() == []
    reader.after = 0
    assert readings.slow()[0]["seconds"] == 0.0
