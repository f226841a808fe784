from pathlib import Path

import pytest

from agentflow.cli import main
from agentflow.cli.replay import limits_of
from agentflow.events import TERMINAL_TYPES
from agentflow.models.scripted import call
from agentflow.settings import Settings
from agentflow.state import Limits
from agentflow.tools.registry import ToolRegistry, tool

DATA = Path(__file__).resolve().parent.parent / "data"
SAME = "the same decisions in all of its"


def replay(capsys, *arguments):
    """Exit code and what is said."""
    code = main(["replay", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out + err


def test_a_kept_run_has_the_decisions_of_today(talk, capsys):
    run = talk([call("look", key="a")], "There.")
    assert replay(capsys, run) == (0, f"run {run}: {SAME} 17 events\n")


def test_limits_are_those_of_the_settings(talk, capsys, monkeypatch):
    run = talk([call("look", key="a")], [call("look", key="b")], "There.")
    assert replay(capsys, run)[0] == 0
    monkeypatch.setenv("AGENTFLOW_CHAIN__MAX_ITERATIONS", "1")
    code, said = replay(capsys, run)
    assert code == 1
    assert said.startswith(f"run {run} differs at event 9: expected ")
    assert "status='limit'" in said


def test_an_agents_limits_are_all_said_by_settings_and_tools():
    @tool(sequential=True)
    def pay() -> str:
        """Pay."""
        return ""

    assert limits_of(Settings(), ToolRegistry([])) == Limits(degraded=Settings().model.degraded)
    assert limits_of(Settings(), ToolRegistry([pay])).sequential == {"pay"}


async def test_what_chat_has_written_can_be_replayed(agentflow, tmp_path):
    async with agentflow("chat", "--model", "scripted/Hello", "--json") as command:
        done = await command.finished(b"one\ntwo\n")
    (tmp_path / "log.ndjson").write_text(done.out + "\n", "utf-8")
    async with agentflow("replay", "log.ndjson") as command:
        said = (await command.finished()).out.splitlines()
    ends = [event for event in done.events if event.type in TERMINAL_TYPES]
    assert said == [f"run {end.run_id}: {SAME} {end.seq} events" for end in ends]
    assert len(ends) == 2


def test_a_log_may_stop_anywhere(capsys, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\n".join((DATA / "text.ndjson").read_bytes().splitlines()[:5]))
    code, said = replay(capsys, path)
    assert (code, said.endswith("5 events; it has not ended\n")) == (0, True)


def test_where_a_log_differs_is_said_with_exit_code_1(capsys, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(
        (DATA / "text.ndjson")
        .read_bytes()
        .replace(b'"finish_reason":"stop","usage"', b'"finish_reason":"length","usage"')
    )
    code, said = replay(capsys, path)
    assert code == 1
    assert "differs at event" in said
    assert "expected final with finish_reason='stop'" in said
    assert "found final with finish_reason='length'" in said
    assert len(said.splitlines()) == 1


def test_the_first_run_of_a_file_that_differs_is_the_last_that_is_looked_at(capsys, tmp_path):
    path = tmp_path / "log"
    lines = (DATA / "text.ndjson").read_bytes()
    path.write_bytes(
        lines.replace(b'"current":"completed"', b'"current":"failed"') + lines.replace(b'"run_id":"', b'"run_id":"x')
    )
    code, said = replay(capsys, path)
    assert (code, len(said.splitlines())) == (1, 1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no events"),
        (b"\n\n", "has no events"),
        (b"[project]\n", "line 1 is no event"),
        (b'{"type":"final"}', "line 1 is no event"),
        (b"\xff\xfe", "line 1 is no event"),
        (b"".join((DATA / "text.ndjson").read_bytes().splitlines(keepends=True)[2:]), "begins with event 3"),
    ],
)
def test_a_file_that_is_no_log_is_one_line_and_exit_code_2(capsys, tmp_path, content, words):
    path = tmp_path / "log"
    path.write_bytes(content)
    code, said = replay(capsys, path)
    assert (code, len(said.splitlines()), words in said) == (2, 1, True)


def test_an_unknown_run_is_one_line_and_exit_code_2(capsys):
    assert replay(capsys, "nope") == (2, "agentflow: no run 'nope': `agentflow runs` shows which there are\n")


def test_tools_that_cannot_be_had_are_told(capsys):
    code, said = replay(capsys, DATA / "text.ndjson", "--tools", "no.such")
    assert (code, "'no.such'" in said) == (2, True)
