"""What of runs is the SQLite store's own; what all stores do is in the suite."""

import pytest

from agentflow.stores import sqlite_runs
from agentflow.stores.sqlite_file import SqliteFile
from agentflow.testing.store_probe import end, log


@pytest.fixture
def file(tmp_path):
    file = SqliteFile(tmp_path / "store.db")
    yield file
    file.close()


def do(file, function, *args, **kwargs):
    (result,) = file.write([lambda db: function(db, *args, **kwargs)])
    if isinstance(result, Exception):
        raise result
    return result


def test_a_page_ends_with_its_bytes_and_holds_one_event_at_least(file, monkeypatch):
    do(file, sqlite_runs.append, "r", log("r", count=10, text="x" * 1000), token=None, wall=0.0)
    for bound, count in ((1, 1), (2500, 2), (10**6, 10)):
        monkeypatch.setattr(sqlite_runs, "PAGE_BYTES", bound)
        page = file.read(lambda db: sqlite_runs.read(db, "r", 0, 100))
        assert [event.seq for event in page] == [*range(1, count + 1)]


def test_a_lease_from_before_the_machine_was_started_has_lapsed(file):
    first = do(file, sqlite_runs.acquire_lease, "r", "before", 15.0, now=90_000.0)
    assert do(file, sqlite_runs.acquire_lease, "r", "other", 15.0, now=90_014.9) is None
    assert do(file, sqlite_runs.acquire_lease, "r", "after", 15.0, now=30.0) == first + 1


def test_a_lease_lapses_in_the_moment_it_was_given_until(file):
    do(file, sqlite_runs.acquire_lease, "r", "a", 15.0, now=100.0)
    do(file, sqlite_runs.renew_lease, "r", 1, 15.0, now=110.0)
    assert do(file, sqlite_runs.acquire_lease, "r", "b", 15.0, now=124.9) is None
    assert do(file, sqlite_runs.acquire_lease, "r", "b", 15.0, now=125.0) == 2


def test_nobody_is_not_the_user_with_an_empty_id():
    assert len({sqlite_runs.user_column(user_id) for user_id in (None, "", "=", "None")}) == 4


def test_a_dropped_run_leaves_no_event(file):
    do(file, sqlite_runs.append, "r", [*log("r", count=3), end("r", 4)], token=None, wall=0.0)
    number = file.read(lambda db: sqlite_runs.find_run(db, "r")).number
    do(file, sqlite_runs.drop_runs, [number])
    assert file.read(
        lambda db: db.execute("SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM events)").fetchone()
    ) == (0, 0)
