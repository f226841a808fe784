"""The command where a shell has closed its standard streams, or where they lead to what takes nothing."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

CHAT = "chat Hi --model scripted/Hello"
COMMANDS = ["--version", "--help", "models", "tools --json", "schema", "doctor --offline", CHAT, f"{CHAT} --json"]

needs_a_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")


@pytest.fixture
def shell(tmp_path):
    """`await shell("chat Hi", "<&-")`: exit code, output and complaints of `agentflow` with these redirections.

    `before` are variables as a shell sets them for one command.
    """

    async def run(line, redirections="", *, before="", stdout=asyncio.subprocess.PIPE):
        process = await asyncio.create_subprocess_shell(
            f'{before} "{sys.executable}" -m agentflow {line} {redirections}',
            cwd=tmp_path,
            env={"HOME": str(tmp_path)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return process.returncode, (out or b"").decode(), err.decode()

    return run


@pytest.mark.parametrize("line", COMMANDS)
async def test_an_output_that_is_closed_is_one_line_and_exit_code_2(shell, line):
    said = "agentflow: standard output is closed: leave it open, or send it to a file\n"
    assert await shell(line, ">&-") == (2, "", said)


@needs_a_full_device
@pytest.mark.parametrize("line", COMMANDS)
async def test_an_output_that_is_full_is_one_line_and_exit_code_2(shell, line):
    code, out, err = await shell(line, "> /dev/full")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("agentflow: output cannot be written")
    assert "No space left" in err


@pytest.mark.parametrize("redirections", [">&- 2>&-", pytest.param("> /dev/full 2>&1", marks=needs_a_full_device)])
async def test_where_nothing_can_be_said_the_exit_code_tells(shell, redirections):
    assert await shell(CHAT, redirections) == (2, "", "")


@pytest.mark.parametrize("redirection", ["2>&-", pytest.param("2> /dev/full", marks=needs_a_full_device)])
async def test_complaints_that_cannot_be_written_change_no_exit_code(shell, redirection):
    assert await shell("--modle", redirection) == (2, "", "")
    assert await shell(CHAT, redirection) == (0, "Hello\n", "")


async def test_an_input_that_is_closed_is_one_without_a_message(shell):
    assert await shell(CHAT, "<&-") == (0, "Hello\n", "")
    for message in ("", "-"):
        code, out, err = await shell(f"chat {message} --model scripted/Hello", "<&-")
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert "there is no message" in err


async def test_an_input_that_cannot_be_read_is_one_line_and_exit_code_2(shell):
    code, out, err = await shell("chat --model scripted/Hello", "0> written")
    assert (code, out, len(err.splitlines())) == (2, "", 1)


@pytest.mark.parametrize("line", ["models", "schema", f"{CHAT} --json"])
async def test_a_pipe_that_nobody_reads_any_more_ends_it_without_a_word(shell, line):
    reader, writer = os.pipe()
    os.close(reader)
    code, _, err = await shell(line, stdout=writer)
    os.close(writer)
    assert (code in (1, 130), err) == (True, "")


@pytest.mark.parametrize("flags", ["", " --json"])
@pytest.mark.parametrize("language", [{}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}])
async def test_a_model_whose_bytes_are_no_text_is_one_line_and_exit_code_2(shell, flags, language):
    settings = " ".join(f"{name}={value}" for name, value in language.items())
    code, out, err = await shell("""chat Hi --model "$(printf 'scripted/\\377')\"""" + flags, before=settings)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "no model string" in err
