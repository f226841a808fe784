"""One record is one line, whatever is said in it; a secret is in none."""

import io
import json
import logging
import re

import pytest

from agentflow import Agent
from agentflow.errors import ToolFailedError
from agentflow.observability.logs import MAX_TEXT, formatter, logged
from agentflow.observability.masking import Masks
from agentflow.testing import ScriptedModel, call
from tests.observability.mixed import mixed_agent, run_all
from tests.observability.test_masking import KEYS

CORPUS = [
    "two\nlines",
    'a\r\n{"level": "critical", "event": "forged"}',
    "\x1b[2J\x1b[31mred\x1b[0m",
    "line\u2028separator\u2029paragraph\x85next\x0bvertical\x0cform",
    "%s %d %(name)s %",
    "{x} {0} {",
    "\x00\x07\x08nul bell backspace",
    "\ud800 half of a character",
    "\u202eright to left",
    'quotes " and \\ backslash',
    "= looks like=fields level=critical",
    "x" * 1000 * 1024,
]


async def log_of_runs(form, agent, runs, **options):
    stream = io.StringIO()
    async with agent:
        with logged(form, [agent.bus], stream=stream, **options):
            await runs(agent)
    return stream.getvalue()


def one(form, record, **fields):
    return formatter(form, Masks()).format(record)


def record(message, *args, error=None):
    info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("mine", logging.ERROR, __file__, 1, message, args, info)


def is_harmless(line):
    return all(character.isprintable() for character in line)


async def test_json_has_one_object_a_line_with_the_ids_of_the_run():
    text = await log_of_runs("json", mixed_agent(), run_all)
    lines = [json.loads(line) for line in text.splitlines()]
    ended = [line for line in lines if line["event"] in ("run ended", "run failed", "run cancelled")]
    assert len(ended) == 6
    for line in lines:
        if line["logger"] == "agentflow.runs":
            assert len(line["run"]) == 36
            assert len(line["trace"]) == 32
            assert line["timestamp"].endswith("Z")
    assert list(lines[0])[:4] == ["timestamp", "level", "logger", "event"]


async def test_the_console_shows_a_line_for_people():
    text = await log_of_runs("console", mixed_agent(), run_all)
    first = text.splitlines()[0]
    assert " info    run began  run=" in first
    assert "agent=shop" in first
    assert "user=" not in first


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("hostile", CORPUS, ids=range(len(CORPUS)))
async def test_what_users_models_and_tools_say_is_one_line(form, hostile):
    def fail(text: str) -> str:
        """Fail."""
        raise ToolFailedError(text)

    script = ScriptedModel([hostile, call("fail", text=hostile[:5000])], hostile, hostile)
    agent = Agent(model=script, tools=[fail])
    said = hostile.encode("utf-8", "replace").decode()

    async def runs(agent):
        await agent.chat(said, user_id="u1", session_id="s1")

    text = await log_of_runs(form, agent, runs, content=True)
    lines = text.split("\n")[:-1]
    assert len(lines) == len(text.splitlines())
    assert all(map(is_harmless, lines))
    assert all(len(line) < 8 * MAX_TEXT for line in lines)
    if form == "json":
        assert all(json.loads(line)["level"] in ("info", "warning", "error") for line in lines)
    assert "forged" not in [line.split()[2:3] for line in lines]


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("hostile", CORPUS, ids=range(len(CORPUS)))
def test_what_others_log_is_one_line_too(form, hostile):
    for line in (one(form, record(hostile)), one(form, record("said %s", hostile))):
        assert "\n" not in line
        assert is_harmless(line)


@pytest.mark.parametrize("hostile", CORPUS, ids=range(len(CORPUS)))
def test_a_traceback_cannot_be_taken_for_records(hostile):
    try:
        raise ValueError(hostile)
    except ValueError as error:
        in_json, for_people = (one(form, record("failed", error=error)) for form in ("json", "console"))
    assert "\n" not in in_json
    assert "ValueError" in json.loads(in_json)["exception"]
    head, *below = for_people.split("\n")
    assert head.endswith("mine: failed")
    assert all(line.startswith("    | ") and is_harmless(line) for line in below)


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("key", KEYS)
async def test_no_key_shows_whatever_field_it_is_in(form, key):
    def leaky(password: str) -> str:
        """Fail with what it was given."""
        raise ToolFailedError(f"cannot log in with {password}")

    agent = Agent(
        name="shop",
        model=ScriptedModel([f"your key is {key}", call("leaky", password=key)], f"it is {key}", "ok"),
        tools=[leaky],
    )

    async def runs(agent):
        whose = key if re.fullmatch(r"[\w-]+", key) else None  # an id may be no other text
        await agent.chat(f"my key is {key}", user_id=whose, session_id=whose)
        logging.getLogger("agentflow.other").warning("connecting with %s", key)
        try:
            raise RuntimeError(key)
        except RuntimeError:
            logging.getLogger("agentflow.other").exception("it failed")

    text = await log_of_runs(form, agent, runs, content=True)
    assert key not in text
    assert "***" in text


async def test_a_secret_that_is_configured_never_shows():
    secret = "correct horse battery"
    agent = Agent(model=ScriptedModel(f"it is {secret}"))
    text = await log_of_runs("json", agent, lambda agent: agent.chat(secret), content=True, secrets=[secret])
    assert "correct horse" not in text


async def test_a_log_that_cannot_be_written_fails_no_run():
    class Broken(io.StringIO):
        def write(self, text):
            raise OSError("disk full")

    async with Agent(model=ScriptedModel("fine")) as agent:
        with logged("json", [agent.bus], stream=Broken()):
            reply = await agent.chat("hi")
    assert reply.text == "fine"


async def test_afterwards_the_process_logs_as_it_did_before():
    root, own = logging.getLogger(), logging.getLogger("agentflow")
    before = (tuple(root.handlers), own.level)
    async with Agent(model=ScriptedModel("fine")) as agent:
        with logged("json", [agent.bus], stream=io.StringIO()):
            assert own.level == logging.INFO
        with logged("off", [agent.bus]):
            assert (tuple(root.handlers), own.level) == before
    assert (tuple(root.handlers), own.level) == before
