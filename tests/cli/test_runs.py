import json
import os
import subprocess
import sys

import pytest

from agentflow.cli import main
from agentflow.cli.runs import read
from agentflow.errors import RunFailed
from agentflow.models.scripted import call
from agentflow.stores.base import SessionKey
from agentflow.testing import FakeProvider, assert_laws, text, tool_calls

HOLD = """
import asyncio, sys
from agentflow import tool

@tool
async def hold() -> str:
    print("begun", file=sys.stderr, flush=True)
    await asyncio.Event().wait()
"""


def test_runs_are_listed_the_newest_first_with_what_became_of_them(talk, with_store, capsys):
    good = talk("Hello", session_id="s1")
    with pytest.raises(RunFailed) as caught:
        talk([call("look", key="a")], session_id="s2")
    bad = caught.value.run_id
    with_store(lambda store: store.open_session(SessionKey("s3"), "waits"))
    assert main(["runs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[-4], line[-1]) for line in lines] == [
        ("waits", "open", "s3"),
        (bad, "failed", "s2"),
        (good, "final", "s1"),
    ]
    assert main(["runs", "--open"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["waits"]


async def test_programs_get_a_json_object_a_line(agentflow, chat, tmp_path):
    (tmp_path / "asking.py").write_text("from agentflow.tools import ask_user\nTOOLS = [ask_user]\n")
    async with FakeProvider(tool_calls(("ask_user", {"question": "Which?"}))) as provider:
        done = await chat(provider, "Hi", "--json", "--tools", "asking", "--session", "s1")
    async with agentflow("runs", "--json") as command:
        (line,) = (await command.finished()).out.splitlines()
    run = json.loads(line)
    assert run == {
        "run_id": done.events[0].run_id,
        "session_id": "s1",
        "user_id": None,
        "state": "cancelled",
        "ended": True,
        "events": len(done.events),
        "ts": done.events[-1].ts,
    }


async def test_the_events_of_a_run_are_those_that_chat_has_shown(agentflow, chat):
    async with FakeProvider(tool_calls(("calculator", {"expression": "1+1"})), text("It is 2.")) as provider:
        shown = await chat(provider, "1+1?", "--json")
    run_id = shown.events[0].run_id
    assert_laws(shown.events)
    for flags, after in ((), 0), (("--after", "5"), 5), (("--follow",), 0), (("--after", "99", "--follow"), 99):
        async with agentflow("events", run_id, *flags) as command:
            done = await command.finished()
        assert (done.code, done.err, done.out.splitlines()) == (0, "", shown.out.splitlines()[after:])


async def test_a_run_that_goes_on_is_followed_to_its_end(agentflow, tmp_path):
    (tmp_path / "holding.py").write_text(HOLD)
    async with FakeProvider(tool_calls(("hold", {}))) as provider:
        flags = ("--base-url", provider.base_url, "--model", "m", "--tools", "holding", "--json")
        async with agentflow("chat", "Hi", *flags) as chat:
            await chat.says("begun")
            async with agentflow("runs", "--open", "--json") as command:
                run = json.loads((await command.finished()).out)
            async with agentflow("events", run["run_id"]) as command:
                so_far = (await command.finished()).events
            assert (run["state"], so_far[-1].type) == ("open", "state")
            async with agentflow("events", run["run_id"], "--follow") as left:
                assert await left.line() == so_far[0]
                left.interrupt()
                ended = await left.finished()
            async with agentflow("events", run["run_id"], "--follow") as follower:
                first = await follower.line()
                chat.interrupt()
                done, rest = await chat.finished(), await follower.finished()
    assert (done.code, rest.code, rest.err, ended.code, ended.err) == (130, 0, "", 130, "")
    assert [first, *rest.events] == done.events


@pytest.mark.parametrize("line", ["runs", "runs --json", "sessions", "sessions show s1", "events {run}"])
def test_a_pipe_that_nobody_reads_any_more_ends_it_without_a_word(talk, environment, line):
    run = talk("Hello", session_id="s1")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "agentflow", *line.format(run=run).split()]
    done = subprocess.run(command, env=environment(), stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("line", ["events nope", "events nope --follow", "events nope --after 3"])
def test_an_unknown_run_is_one_line_and_exit_code_2(capsys, line):
    assert main(line.split()) == 2
    assert capsys.readouterr() == ("", "agentflow: no run 'nope': `agentflow runs` shows which there are\n")


def test_runs_and_events_are_read_in_pages(talk, with_store, capsys, monkeypatch):
    monkeypatch.setattr("agentflow.cli.runs.PAGE", 2)
    run = talk("Hello")

    async def read_all(store):
        return [event.seq async for event in read(store, run, 1)]

    assert with_store(read_all) == list(range(2, 10))
