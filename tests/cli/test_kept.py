"""What holds for all commands about the store: which store it is, and what becomes of one that cannot be used."""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest

from agentflow.cli import main
from agentflow.stores.base import SessionKey
from agentflow.stores.sqlite_file import MIGRATIONS
from agentflow.testing import FakeProvider, text

READING = ["sessions", "sessions show s1", "runs", "events r", "replay r", "facts --user ada"]
CHAT = "chat Hi --model scripted/Hello --session s1"


@pytest.fixture
def refused(capsys):
    """`refused(line)`: the one line that a command ends with."""

    def run(line):
        assert main(line.split()) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1), err
        return err

    return run


@pytest.mark.parametrize("line", [*READING, CHAT])
def test_a_file_that_is_no_store_is_refused_and_left_as_it_is(refused, store_path, line):
    store_path.write_bytes(b"no database, but something of yours" * 100)
    before = store_path.read_bytes()
    assert "damaged or no database" in refused(line)
    assert store_path.read_bytes() == before


@pytest.mark.parametrize("line", [READING[0], CHAT])
def test_a_store_of_a_newer_version_is_refused(refused, talk, store_path, line):
    talk("Hello")
    with contextlib.closing(sqlite3.connect(store_path)) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    assert "update agentflow" in refused(line)


@pytest.mark.parametrize("line", [READING[0], CHAT])
def test_a_store_whose_folder_does_not_exist_is_refused(refused, monkeypatch, tmp_path, line):
    monkeypatch.setenv("AGENTFLOW_MEMORY__URL", str(tmp_path / "no" / "store.db"))
    assert "check that its folder exists" in refused(line)


def test_a_store_that_may_only_be_read_is_shown_but_not_talked_into(refused, talk, store_path, monkeypatch, capsys):
    if os.geteuid() != 0:
        pytest.skip("only root can become a user without rights")
    talk("Hello", session_id="s1")
    folder = Path(tempfile.mkdtemp())
    try:
        shutil.copy(store_path, folder / "store.db")
        folder.chmod(0o755)
        (folder / "store.db").chmod(0o644)
        monkeypatch.setenv("AGENTFLOW_MEMORY__URL", str(folder / "store.db"))
        os.seteuid(65534)
        try:
            said = refused(CHAT)
        finally:
            os.seteuid(0)
        assert "read-only" in said or "cannot be opened" in said
    finally:
        shutil.rmtree(folder)


def test_a_store_that_keeps_nothing_is_told(refused, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MEMORY__STORE", "in_memory")
    assert "set it to 'sqlite' or 'redis'" in refused("sessions")


async def test_a_conversation_goes_on_in_another_process(chat):
    async with FakeProvider(text("One."), text("Two.")) as provider:
        await chat(provider, "first", "--session", "s1")
        await chat(provider, "second", "--session", "s1")
    said = [message["content"] for message in provider.requests[1].body["messages"]]
    assert said == ["first", "One.", "second"]


async def test_what_was_said_stands_in_a_file_in_the_users_home(agentflow, tmp_path):
    async with agentflow(*CHAT.split(), AGENTFLOW_MEMORY__URL=None) as command:
        assert (await command.finished()).code == 0
    path = tmp_path / ".agentflow" / "agentflow.db"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


async def test_by_setting_nothing_is_kept(chat, store_path):
    async with FakeProvider(text("One."), text("Two.")) as provider:
        for message in ("first", "second"):
            await chat(provider, message, "--session", "s1", AGENTFLOW_MEMORY__STORE="in_memory")
    assert [message["content"] for message in provider.requests[1].body["messages"]] == ["second"]
    assert not store_path.exists()


def test_who_holds_the_session_is_said_before_it_is_waited_for(with_store, capsys, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_SESSION__BUSY", "reject")

    async def hold(store):
        await store.acquire_lease("run-1", "another process", 60)
        await store.open_session(SessionKey("s1"), "run-1")

    with_store(hold)
    assert main(CHAT.split()) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("agentflow: session 's1' is held by run run-1; if the process of that run has died")
    assert "busy" in second


def test_a_run_whose_process_has_died_is_gone_on_with_before_the_message(with_store, capsys):
    with_store(lambda store: store.open_session(SessionKey("s1"), "run-1"))  # it died before its first event
    assert main(CHAT.split()) == 0
    assert "is held by run run-1" in capsys.readouterr().err


def test_a_run_of_before_is_left_as_it_is(with_store, talk):
    async def leave(store):
        await store.open_session(SessionKey("other"), "open")

    with_store(leave)
    main(CHAT.split())
    record = with_store(lambda store: store.find_run("open"))
    assert (record.ended, record.last) == (False, 0)
