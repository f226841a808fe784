"""What a file may be and what may happen to it: refused, waited for or survived, and never overwritten."""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from functools import partial
from pathlib import Path

import msgspec
import pytest

from agentflow.errors import ConfigError, StoreError, StoreFormatError
from agentflow.stores import sqlite_file, sqlite_runs
from agentflow.stores.base import cancel_letter
from agentflow.stores.sqlite_file import MIGRATIONS, SqliteFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a store #1?.db"  # a name that means something in a URI


@contextlib.contextmanager
def opened(path, **options):
    file = SqliteFile(path, **{"patience": 0.05, **options})
    try:
        yield file
    finally:
        file.close()


def put(value, db):
    db.execute("UPDATE tokens SET last = ?", (value,))
    return value


def get(db):
    return db.execute("SELECT last FROM tokens").fetchone()[0]


def write(file, *values):
    return file.write([partial(put, value) for value in values])


def test_what_is_written_is_read_by_others_and_after_a_new_start(path):
    with opened(path) as file, opened(path) as other:
        assert write(file, 1, 2) == [1, 2]
        assert (file.read(get), other.read(get)) == (2, 2)
    with opened(path) as file:
        assert file.read(get) == 2
    assert path.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_reader_writes_nothing(path):
    with opened(path) as file, pytest.raises(StoreError, match="read-only"):
        file.read(partial(put, 5))


def test_a_look_changes_nothing_and_says_whether_the_file_can_be_written(path):
    with opened(path) as file:
        assert file.look() is None
        assert not path.exists()
        write(file, 1)
        assert file.look() == (len(MIGRATIONS), 0)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="lock"):
                file.look()
        assert file.look() == (len(MIGRATIONS), 0)


def test_the_version_is_another_one_after_anybody_has_written(path):
    with opened(path) as file, opened(path) as other:
        versions = [file.version()]
        for value, writer in enumerate((file, other)):
            write(writer, value + 1)
            versions += [file.version(), file.version()]
        assert versions[1] == versions[2] != versions[0]
        assert versions[3] == versions[4] != versions[1]


@pytest.mark.parametrize(("level", "number"), [("normal", 1), ("full", 2)])
def test_the_level_is_what_sqlite_syncs(level, number, path):
    with opened(path, level=level) as file:
        assert file.write([lambda db: db.execute("PRAGMA synchronous").fetchone()[0]]) == [number]


@pytest.mark.parametrize("bad", [{"path": ":memory:"}, {"path": ""}, {"path": "x", "level": "off"}])
def test_what_cannot_be_a_file_or_a_level_is_refused_at_once(bad):
    with pytest.raises(ConfigError):
        SqliteFile(**bad)


# -- groups ----------------------------------------------------------------------------------------------


def test_a_job_that_raises_changes_nothing_and_hinders_nobody(path):
    def half(db):
        put(99, db)
        raise ZeroDivisionError

    def refused(db):
        put(98, db)
        raise StoreError("no")

    with opened(path) as file:
        results = file.write([partial(put, 1), half, get, refused, get, lambda db: db.execute("nonsense")])
        assert [type(result) for result in results] == [int, ZeroDivisionError, int, StoreError, int, StoreError]
        assert (results[2], results[4], file.read(get)) == (1, 1, 1)


def test_when_the_transaction_is_lost_every_job_is_told_and_the_next_group_is_fine(path):
    def lose(db):
        put(99, db)
        db.execute("ROLLBACK")  # as SQLite itself does when the disk is full
        raise sqlite3.OperationalError("gone")

    with opened(path) as file:
        write(file, 1)
        assert [type(result) for result in file.write([partial(put, 2), lose, partial(put, 3)])] == [StoreError] * 3
        assert file.read(get) == 1
        assert write(file, 4) == [4]


# -- who may open it -------------------------------------------------------------------------------------


def test_a_damaged_file_is_refused_and_left_as_it_is(path):
    path.write_bytes(b"This is no database, but somebody's letter. " * 100)
    before = path.read_bytes()
    with opened(path) as file:
        for _ in range(2):
            (result,) = write(file, 1)
            assert isinstance(result, StoreFormatError)
            with pytest.raises(StoreFormatError, match="left as it is"):
                file.read(get)
    assert path.read_bytes() == before


def test_a_file_damaged_in_its_middle_is_told_of_and_left_as_it_is(path):
    with opened(path) as file:
        write(file, 1)
        file.write([partial(fill_events, 500)])
    data = bytearray(path.read_bytes())
    data[20_000:400_000] = b"\xff" * 380_000
    path.write_bytes(data)
    with opened(path) as file, pytest.raises(StoreFormatError, match="damaged"):
        file.read(lambda db: db.execute("SELECT sum(length(data)) FROM events").fetchone())
    assert path.read_bytes() == data


def fill_events(count, db):
    db.executemany("INSERT INTO events VALUES (1, ?, ?)", [(number, b"x" * 1000) for number in range(count)])


def test_a_row_that_cannot_be_decoded_is_a_damage_as_well(path):
    with opened(path) as file, pytest.raises(StoreFormatError, match="damaged"):
        file.read(lambda _: msgspec.json.decode(b"{"))


@pytest.mark.parametrize("statements", [["CREATE TABLE mine (x)"], ["PRAGMA user_version = 3"]])
def test_another_applications_database_is_refused_and_left_as_it_is(path, statements):
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
    before = path.read_bytes()
    with opened(path) as file, pytest.raises(StoreFormatError, match="something else"):
        file.read(get)
    assert path.read_bytes() == before


def test_a_newer_file_is_refused_and_left_as_it_is(path, monkeypatch):
    with opened(path) as file, monkeypatch.context() as future:
        future.setattr(sqlite_file, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE more (x)"))
        write(file, 7)
    before = path.read_bytes()
    with opened(path) as file, pytest.raises(StoreFormatError, match="and this agentflow knows"):
        file.read(get)
    assert path.read_bytes() == before


def test_an_older_file_is_brought_up_to_date_with_all_that_is_in_it(path, monkeypatch):
    with opened(path) as file:
        write(file, 7)
    newer = "ALTER TABLE tokens ADD COLUMN more; UPDATE tokens SET more = last"
    monkeypatch.setattr(sqlite_file, "MIGRATIONS", (*MIGRATIONS, newer))
    with opened(path) as file, opened(path) as other:
        assert [f.read(lambda db: db.execute("SELECT * FROM tokens").fetchall()) for f in (file, other)] == [
            [(7, 7)]
        ] * 2


def test_a_request_to_end_in_a_file_of_the_first_version_has_become_a_letter(path, monkeypatch):
    with opened(path) as file, monkeypatch.context() as past:
        past.setattr(sqlite_file, "MIGRATIONS", MIGRATIONS[:1])
        rows = (
            "INSERT INTO runs (run_id, cancel, ended_at) VALUES ('r', 'user', NULL), ('x', NULL, 1), ('e', 'user', 1)"
        )
        assert file.write([lambda db: db.execute(rows) and None]) == [None]
    with opened(path) as file:
        assert file.read(lambda db: sqlite_runs.list_letters(db, "r")) == [cancel_letter("user")]
        assert [file.read(lambda db, run_id=run_id: sqlite_runs.list_letters(db, run_id)) for run_id in "xe"] == [
            [],
            [],
        ]


def test_a_migration_that_fails_changes_nothing(path, monkeypatch):
    with opened(path) as file:
        write(file, 7)
    with monkeypatch.context() as future, opened(path) as file:
        future.setattr(sqlite_file, "MIGRATIONS", (*MIGRATIONS, "DELETE FROM tokens; nonsense"))
        with pytest.raises(StoreError, match="nonsense"):
            file.read(get)
    with opened(path) as file:
        assert file.read(get) == 7


# -- what may happen to it -------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_is_told_and_looked_for_again(path):
    path = path.parent / "later" / "store.db"
    with opened(path) as file:
        (result,) = write(file, 1)
        assert isinstance(result, StoreError)
        assert "check that its folder exists" in str(result)
        path.parent.mkdir()
        assert write(file, 1) == [1]


@contextlib.contextmanager
def without_rights():
    """As a user who may not write everywhere, should this one be root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_in_a_read_only_folder_nothing_is_made():
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o555)
        with without_rights(), opened(folder / "store.db") as file:
            (result,) = write(file, 1)
        assert isinstance(result, StoreError)
        assert "folder" in str(result)
        assert list(folder.iterdir()) == []
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_read_only_file_is_read_but_not_written():
    folder = Path(tempfile.mkdtemp())
    path = folder / "store.db"
    try:
        with opened(path) as owner:
            write(owner, 7)
            for found in folder.iterdir():
                found.chmod(0o444)
            folder.chmod(0o555)
            with without_rights(), opened(path) as file:
                assert file.read(get) == 7
                (result,) = write(file, 8)
                assert isinstance(result, StoreError)
                assert "read-only" in str(result)
                assert file.read(get) == 7
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_when_the_disk_is_full_reads_go_on_and_writes_come_back_with_space(path):
    with opened(path) as file:
        write(file, 1)
        file.write([lambda db: db.execute("PRAGMA max_page_count = 60").fetchone()])
        results = file.write([partial(put, 2), partial(fill_events, 1000)])
        assert {type(result) for result in results} <= {int, StoreError}
        assert "the disk is full" in str(results[1])
        assert file.read(get) in (1, 2)
        file.write([lambda db: db.execute("PRAGMA max_page_count = 100000").fetchone()])
        assert write(file, 3) == [3]
        file.write([partial(fill_events, 1000)])
        assert file.read(lambda db: db.execute("SELECT count(*) FROM events").fetchone()) == (1000,)


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_is_removed_or_replaced_in_use_is_not_written_any_more(path, suffix, replaced):
    part = path.with_name(path.name + suffix)
    with opened(path) as file:
        write(file, 1)
        kept = part.read_bytes()
        part.unlink()
        if replaced:
            part.write_bytes(kept)
        (result,) = write(file, 2)
        assert isinstance(result, StoreError)
        assert "removed or replaced" in str(result)
        with pytest.raises(StoreError, match="removed or replaced"):
            file.read(get)
        assert part.exists() == replaced
        assert not replaced or part.read_bytes() == kept


def test_a_lock_of_another_process_is_waited_for_and_then_told(path):
    with opened(path) as file, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        write(file, 1)
        other.execute("BEGIN IMMEDIATE")
        (result,) = write(file, 2)
        assert isinstance(result, StoreError)
        assert result.retryable
        assert "another process" in str(result)
        assert file.read(get) == 1
        other.execute("COMMIT")
        assert write(file, 2) == [2]


def test_a_reader_that_stands_still_delays_no_writer(path):
    with opened(path) as file, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        write(file, 1)
        other.execute("BEGIN")
        assert get(other) == 1
        assert [write(file, value) for value in range(2, 50)] == [[value] for value in range(2, 50)]
        assert (get(other), file.read(get)) == (1, 49)


def test_nobody_writes_between_what_a_job_reads_and_what_it_writes(path):
    with opened(path) as file, opened(path) as other:
        write(file, 1)

        def add(db):
            before = get(db)
            (result,) = write(other, 100)
            assert isinstance(result, StoreError)
            return put(before + 1, db)

        assert (file.write([add]), other.read(get)) == ([2], 2)
