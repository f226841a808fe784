"""A SQLite file as a store uses it: opened, checked and migrated, written in groups, read beside that.

It knows the tables but not what is done with them, and nothing of the event loop: every method blocks, and is called
from threads. Foreign errors are translated here.
"""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from agentflow.errors import ConfigError, StoreError, StoreFormatError

T = TypeVar("T")

Level: TypeAlias = Literal["normal", "full"]
Job: TypeAlias = Callable[[sqlite3.Connection], Any]

APPLICATION_ID = 0x61666C77  # "aflw", in the file's header

# Every version of the tables is made from the one before by one script; a new file goes through all of them.
# `user` is '' for nobody and '=' with the id else, since two NULLs are never the same.
MIGRATIONS = (
    """
    CREATE TABLE runs (
        number INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL UNIQUE, session_id TEXT, user TEXT,
        last INTEGER NOT NULL DEFAULT 0, ended_at REAL, closing BLOB, cancel TEXT,
        owner TEXT, token INTEGER, leased_until REAL, lease REAL
    );
    CREATE INDEX runs_by_end ON runs (ended_at);
    CREATE INDEX runs_without_events ON runs (number) WHERE last = 0;
    CREATE INDEX runs_by_session ON runs (user, session_id);
    CREATE TABLE events (run INTEGER, seq INTEGER, data BLOB, PRIMARY KEY (run, seq)) WITHOUT ROWID;
    CREATE TABLE sessions (
        number INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, session_id TEXT NOT NULL,
        version INTEGER NOT NULL DEFAULT 0, used_at REAL NOT NULL, active_run TEXT, deleted INTEGER NOT NULL DEFAULT 0,
        UNIQUE (user, session_id)
    );
    CREATE INDEX sessions_by_use ON sessions (used_at);
    CREATE INDEX sessions_by_run ON sessions (active_run) WHERE active_run IS NOT NULL;
    CREATE TABLE turns (
        session INTEGER, number INTEGER, run_id TEXT NOT NULL, data BLOB NOT NULL,
        UNIQUE (session, number), UNIQUE (session, run_id)
    );
    CREATE TABLE summaries (session INTEGER, first INTEGER, last INTEGER, data BLOB, UNIQUE (session, first, last));
    CREATE TABLE waiting (
        position INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, session_id TEXT NOT NULL,
        run_id TEXT NOT NULL UNIQUE, alive_until REAL NOT NULL
    );
    CREATE INDEX waiting_by_session ON waiting (user, session_id);
    CREATE TABLE outcomes (
        user TEXT, tool TEXT, key TEXT, call_id TEXT NOT NULL, at REAL NOT NULL, outcome BLOB,
        PRIMARY KEY (user, tool, key)
    ) WITHOUT ROWID;
    CREATE INDEX outcomes_by_age ON outcomes (at);
    CREATE TABLE facts (
        number INTEGER PRIMARY KEY AUTOINCREMENT, user_id TEXT NOT NULL, id TEXT NOT NULL,
        superseded INTEGER NOT NULL, data BLOB NOT NULL, UNIQUE (user_id, id)
    );
    CREATE TABLE tokens (last INTEGER NOT NULL);
    INSERT INTO tokens VALUES (0);
    """,
    """
    CREATE TABLE inbox (
        number INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL,
        UNIQUE (run, id)
    );
    INSERT INTO inbox (run, id, data)
        SELECT number, 'cancel', CAST(json_object('id', 'cancel', 'verb', 'cancel', 'text', cancel) AS BLOB)
        FROM runs WHERE cancel IS NOT NULL AND ended_at IS NULL;
    ALTER TABLE runs DROP COLUMN cancel;
    ALTER TABLE runs ADD COLUMN read_until REAL;
    """,
)

_FOREIGN = (sqlite3.Error, OSError, UnicodeError, msgspec.MsgspecError)
_FAULTS = {
    "SQLITE_BUSY": "another process has kept it locked; try again",
    "SQLITE_FULL": "the disk is full; free some space, and writing goes on",
    "SQLITE_READONLY": "it is read-only: give this process the right to write it and its folder",
    "SQLITE_CANTOPEN": "it cannot be opened: check that its folder exists and that this process may write there",
    "SQLITE_IOERR": "the system could not read or write it",
}


class SqliteFile:
    """One file, its writer's connection, and those of readers that are not in use.

    `level` is what survives: with "normal" all that was written when the process is killed, with "full" also when the
    power goes, for a sync to disk with every group. `patience` is in seconds, for a lock of another process.
    Nothing is opened before the first call. A file that is damaged, newer or not ours is refused and left alone.
    """

    def __init__(self, path: str | os.PathLike[str], *, level: Level = "normal", patience: float = 5.0) -> None:
        if level not in ("normal", "full"):
            raise ConfigError(f"level={level!r}: a SQLite store has the levels 'normal' and 'full'")
        if os.fspath(path) in ("", ":memory:"):
            raise ConfigError(f"{os.fspath(path)!r} is no file; for a store that keeps nothing use InMemoryStore")
        self.path = Path(path).expanduser().absolute()
        self._level = level
        self._patience = patience
        self._lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._watcher: sqlite3.Connection | None = None
        self._readers: list[sqlite3.Connection] = []
        self._identity: tuple[int, int] | None = None
        self._wal_path = self.path.with_name(f"{self.path.name}-wal")
        self._wal: tuple[int, int] | None = None

    def write(self, jobs: Sequence[Job]) -> list[Any]:
        """Do all jobs in one transaction: for each its result, or the exception that it or the transaction ended with.

        A job that raises changes nothing and does not hinder the others. For one thread at a time.
        """
        db = None
        try:
            self._prepare()
            settings = (f"synchronous = {self._level}", "journal_size_limit = 67108864")
            db = self._writer = self._writer or self._connect(*settings)
            db.execute("BEGIN IMMEDIATE")
            results = [self._attempt(db, job) for job in jobs]
            db.execute("COMMIT")
            self._wal = self._wal or self._stat(self._wal_path)  # which stays as long as this connection does
        except Exception as error:  # noqa: BLE001  it is given to whoever waits for these jobs
            if db is not None and db.in_transaction:
                with suppress(sqlite3.Error):  # a rollback that fails has been done by SQLite itself
                    db.execute("ROLLBACK")
            return [self._translated(error) for _ in jobs]
        return results

    def read(self, call: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `call`, which only reads. From any thread."""
        try:
            self._prepare()
            with self._lock:
                db = self._readers.pop() if self._readers else None
            if db is None:
                db = self._connect("query_only = 1")
            try:
                return call(db)
            finally:
                with self._lock:
                    self._readers.append(db)
        except _FOREIGN as error:
            raise self._translated(error) from error

    def version(self) -> int:
        """A number that is another one after any process has written. For one thread at a time."""
        try:
            self._prepare()
            self._watcher = self._watcher or self._connect("query_only = 1")
            ((version,),) = self._watcher.execute("PRAGMA data_version")
        except _FOREIGN as error:
            raise self._translated(error) from error
        return int(version)

    def look(self) -> tuple[int, int] | None:
        """The version of its tables and how many runs in it are open; None if there is no file yet.

        Changes nothing, and brings no old file up to date. Raises `StoreError` for one that cannot be written.
        """
        if not self.path.exists():
            return None
        try:
            db = self._connect()
            try:
                db.execute("BEGIN IMMEDIATE")  # as whoever is about to write does
                version = self._version(db)
                ((runs,),) = db.execute("SELECT count(*) FROM runs WHERE ended_at IS NULL") if version else ((0,),)
                db.execute("ROLLBACK")
            finally:
                db.close()
        except _FOREIGN as error:
            raise self._translated(error) from error
        return version, int(runs)

    def close(self) -> None:
        """Close all connections. Nothing may be under way."""
        for db in (self._watcher, *self._readers, self._writer):
            if db is not None:
                db.close()
        self._writer = self._watcher = self._wal = None
        self._readers.clear()

    def _attempt(self, db: sqlite3.Connection, job: Job) -> Any:
        db.execute("SAVEPOINT job")
        try:
            result = job(db)
        except Exception as error:
            if not db.in_transaction:  # SQLite has given up all of it
                raise
            db.execute("ROLLBACK TO job")
            result = self._translated(error)
        db.execute("RELEASE job")
        return result

    # -- opening -----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make sure that the file is there, is ours, and has today's tables; later, that it still is that file."""
        with self._lock:
            if self._identity is None:
                self._identity = self._made_ready()
            elif self._identity != self._stat(self.path) or self._wal not in (None, self._stat(self._wal_path)):
                raise StoreError(
                    f"the store {str(self.path)!r}, or the log beside it, was removed or replaced while it was in use; "
                    "nothing was written. Put back what is missing, and restart"
                )

    def _made_ready(self) -> tuple[int, int]:
        deadline = time.monotonic() + self._patience
        if not self.path.exists():  # conversations are private: SQLite would let all the system's users read
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        while True:
            db = self._connect()
            try:
                self._migrate(db)
                return self._stat(self.path) or (0, 0)
            except sqlite3.OperationalError as error:
                # Several processes that open a new file lock each other out, and SQLite does not wait in every case.
                if _name(error) != "SQLITE_BUSY" or time.monotonic() > deadline:
                    raise
            finally:
                db.close()
            time.sleep(random.uniform(0.005, 0.05))  # noqa: S311  to keep them apart

    def _migrate(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN")  # one look, not three between which another process may write
        version = self._version(db)
        db.execute("COMMIT")
        if version == len(MIGRATIONS):
            return
        ((mode,),) = db.execute("PRAGMA journal_mode = WAL")
        if mode != "wal":
            raise StoreError(f"the store {str(self.path)!r} cannot have a log beside it: use a folder of a local disk")
        db.execute("BEGIN IMMEDIATE")
        version = self._version(db)  # again: another process may have been faster
        for script in MIGRATIONS[version:]:
            for statement in script.split(";"):
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        db.execute("COMMIT")

    def _version(self, db: sqlite3.Connection) -> int:
        ((owner,),) = db.execute("PRAGMA application_id")
        ((version,),) = db.execute("PRAGMA user_version")
        ((tables,),) = db.execute("SELECT count(*) FROM sqlite_master")
        if owner != APPLICATION_ID and (owner, version, tables) != (0, 0, 0):
            raise StoreFormatError(f"{str(self.path)!r} is a database of something else; give the store another path")
        if version > len(MIGRATIONS):
            raise StoreFormatError(
                f"the store {str(self.path)!r} has version {version}, and this agentflow knows {len(MIGRATIONS)}; "
                "update agentflow, or give it another path"
            )
        return int(version)

    def _connect(self, *settings: str) -> sqlite3.Connection:
        db = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw",
            uri=True,
            timeout=self._patience,
            isolation_level=None,
            check_same_thread=False,  # each is used by one thread at a time
            cached_statements=64,
        )
        try:
            for setting in settings:
                db.execute(f"PRAGMA {setting}")
        except BaseException:  # also a cancel: nobody else has it yet
            db.close()
            raise
        return db

    def _stat(self, path: Path) -> tuple[int, int] | None:
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _translated(self, error: Exception) -> Exception:
        """A foreign error as ours; what nobody foresaw stays what it is."""
        if not isinstance(error, _FOREIGN):
            return error
        name, where = _name(error), f"the store {str(self.path)!r}"
        ours = StoreError(f"{where}: {_FAULTS.get(name, 'it failed')} ({error})")
        if name in ("SQLITE_CORRUPT", "SQLITE_NOTADB") or isinstance(error, msgspec.MsgspecError):
            ours = StoreFormatError(f"{where} is damaged or no database; it was left as it is, restore it ({error})")
        ours.__cause__ = error
        return ours


def _name(error: Exception) -> str:
    """SQLite's name of what went wrong, without the finer distinction that may follow it."""
    if isinstance(error, OSError):
        return "SQLITE_CANTOPEN"
    return "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])
