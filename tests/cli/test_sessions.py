import json

import pytest

from agentflow.cli import main
from agentflow.models.scripted import call
from agentflow.stores.base import SessionKey, Turn


@pytest.fixture
def two_turns(talk):
    """A session of two turns, the first with a call; the ids of its runs."""
    script = ["Let me look.", call("look", key="a")], "It is there:\na value."
    return talk(*script, message="Where is a?", session_id="s1"), talk("Fine.", message="Thanks", session_id="s1")


def test_sessions_are_listed_the_newest_first_by_user(talk, capsys):
    talk("Hello", session_id="old")
    talk("Hello", session_id="new")
    talk("Hello", session_id="hers", user_id="ada")
    assert main(["sessions"]) == 0
    assert [line.split()[1:] for line in capsys.readouterr().out.splitlines()] == [
        ["1", "turns", "new"],
        ["1", "turns", "old"],
    ]
    assert main(["sessions", "list", "--user", "ada"]) == 0
    assert capsys.readouterr().out.endswith("1 turns  hers\n")


def test_a_session_that_is_held_says_by_whom(with_store, capsys):
    with_store(lambda store: store.open_session(SessionKey("s1"), "run-1"))
    assert main(["sessions"]) == 0
    assert capsys.readouterr().out.endswith("0 turns  s1  held by run run-1\n")


def test_no_sessions_are_no_lines(capsys):
    assert main(["sessions"]) == 0
    assert capsys.readouterr().out == ""


def test_what_was_said_is_shown_with_its_calls(two_turns, capsys):
    first, second = two_turns
    assert main(["sessions", "show", "s1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"turn 1 (final), run {first}",
        "  user: Where is a?",
        "  assistant: Let me look.",
        '  ● look(key="a")',
        "  └ look: [success] value of a",
        "  assistant: It is there:",
        "    a value.",
        f"turn 2 (final), run {second}",
        "  user: Thanks",
        "  assistant: Fine.",
    ]


@pytest.mark.parametrize("command", ["show", "export", "delete"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [(["s2"], "no session 's2' without a user"), (["s1", "--user", "ada"], "no session 's1' of user 'ada'")],
)
def test_an_unknown_session_is_one_line_and_exit_code_2(talk, capsys, tmp_path, command, flags, words):
    talk("Hello", session_id="s1")
    output = tmp_path / "out"
    flags = [*flags, "--output", str(output)] if command == "export" else flags
    assert main(["sessions", command, *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not output.exists()


def test_an_export_is_a_line_on_the_session_and_one_for_each_turn(two_turns, capsys, tmp_path):
    assert main(["sessions", "export", "s1", "--output", str(tmp_path / "s1.ndjson")]) == 0
    header, first, second = map(json.loads, (tmp_path / "s1.ndjson").read_text("utf-8").splitlines())
    assert (header["session_id"], header["user_id"], header["turns"]) == ("s1", None, 2)
    assert (first["turn"], first["run_id"], first["outcome"]) == (1, two_turns[0], "final")
    assert first["messages"][1]["tool_calls"][0]["raw_arguments"] == '{"key": "a"}'
    assert [message["content"] for message in second["messages"]] == ["Thanks", "Fine."]


async def test_programs_get_a_json_object_a_line(agentflow, store_path):
    async def run(*arguments):
        async with agentflow(*arguments) as command:
            done = await command.finished()
        assert (done.code, done.err) == (0, "")
        return [json.loads(line) for line in done.out.splitlines()]

    await run("chat", "Hi", "--model", "scripted/Hello", "--session", "s1", "--json")
    (header,) = await run("sessions", "--json")
    assert (await run("sessions", "--json", "list")) == [header]
    (turn,) = await run("sessions", "show", "s1", "--json")
    assert await run("sessions", "export", "s1") == [header, turn]
    assert [message["content"] for message in turn["messages"]] == ["Hi", "Hello"]


def test_a_session_of_many_turns_is_read_in_pages(with_store, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("agentflow.cli.sessions._PAGE", 2)

    async def fill(store):
        for number in range(1, 6):
            key, run_id = SessionKey("s1"), f"run-{number}"
            await store.open_session(key, run_id)
            await store.close_session(key, run_id, Turn(run_id=run_id, outcome="failed", messages=()))

    with_store(fill)
    assert main(["sessions", "show", "s1"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"turn {n} (failed), run run-{n}" for n in range(1, 6)]


def test_a_deleted_session_is_gone_with_its_runs(two_turns, capsys):
    assert main(["sessions", "delete", "s1"]) == 0
    assert capsys.readouterr().out == "deleted session s1\n"
    assert main(["sessions"]) == main(["runs"]) == 0
    assert capsys.readouterr().out == ""


def test_the_run_that_holds_a_deleted_session_is_asked_to_end(with_store, capsys):
    async def hold(store):
        await store.acquire_lease("run-1", "me", 60)
        await store.open_session(SessionKey("s1"), "run-1")

    with_store(hold)
    assert main(["sessions", "delete", "s1"]) == 0
    assert capsys.readouterr().out == "deleted session s1; run run-1 was asked to end\n"
    assert [letter.text for letter in with_store(lambda store: store.list_letters("run-1"))] == ["user"]
