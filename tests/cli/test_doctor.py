import asyncio
import json
import os

import pytest

from agentflow.cli import doctor
from agentflow.cli.doctor import examine, unreachable
from agentflow.models import routing
from agentflow.models.providers import PRESETS
from agentflow.testing import FakeProvider


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch, tmp_path):
    for variable in [name for name in os.environ if name.startswith("AGENTFLOW_")]:  # noqa: TID251  to clear it
        monkeypatch.delenv(variable)
    for preset in PRESETS.values():
        monkeypatch.delenv(preset.key_variable, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def configured(tmp_path):
    def write(text):
        (tmp_path / "agentflow.toml").write_text(text, encoding="utf-8")

    return write


async def found(subject, **options):
    """The findings on a subject, as level and text."""
    return [(finding.level, finding.text) for finding in await examine(**options) if finding.subject == subject]


async def test_versions_and_the_optional_loop_are_told():
    ((level, versions),) = await found("versions", offline=True)
    assert level == "ok"
    assert "Python 3." in versions
    assert "agentflow-rx " in versions
    ((level, _),) = await found("uvloop", offline=True)
    assert level in ("ok", "note")


async def test_the_settings_file_is_named_or_missed(configured, tmp_path):
    ((level, text),) = await found("settings", offline=True)
    assert (level, "agentflow init" in text) == ("note", True)
    configured("[model]\n")
    assert await found("settings", offline=True) == [("ok", f"from {tmp_path / 'agentflow.toml'}")]


@pytest.mark.parametrize("text", ['[model]\ndefualt = "x"\n', '[providers.openai]\nregion = "moon"\n', "broken"])
async def test_settings_that_cannot_be_read_are_a_problem(configured, text):
    configured(text)
    findings = await examine(offline=True)
    assert (findings[-1].level, findings[-1].subject) == ("problem", "settings")


async def test_providers_are_told_with_and_without_a_key_and_no_key_is_shown(configured, monkeypatch):
    configured('[providers.mine]\nbase_url = "http://h/v1"\napi_key = "canary-1"\n[model]\ndefault = "groq"\n')
    monkeypatch.setenv("GROQ_API_KEY", "canary-2")
    findings = await examine(offline=True)
    keys = [finding.text for finding in findings if finding.subject == "keys"]
    assert keys[0] == "there for groq, mine"
    assert "openai (OPENAI_API_KEY)" in keys[1]
    assert "vllm" not in keys[1]
    assert "canary" not in repr(findings)


async def test_a_model_without_its_key_is_a_problem(configured):
    configured('[model]\ndefault = "openai"\n')
    ((level, text),) = await found("model")
    assert level == "problem"
    assert "set OPENAI_API_KEY" in text


async def test_no_model_at_all_is_a_problem(monkeypatch):
    monkeypatch.setattr(routing, "LOCAL_PACKAGE", "a_package_that_is_not_there")
    ((level, text),) = await found("model")
    assert level == "problem"
    assert "no model is configured" in text


async def test_the_host_of_the_model_is_connected_to_and_asked_nothing(configured):
    async with FakeProvider() as provider:
        configured(f'[providers.mine]\nbase_url = "{provider.base_url}"\n[model]\ndefault = "mine/m"\n')
        ((level, text),) = await found("model")
    assert (level, provider.requests) == ("ok", [])
    assert text.startswith(f"mine/m at {provider.base_url}, which can be reached")
    ((level, text),) = await found("model")
    assert level == "problem"
    assert f"{provider.base_url} cannot be reached (" in text
    ((level, text),) = await found("model", offline=True)
    assert (level, text.endswith("not tried (--offline)")) == ("ok", True)


async def test_one_model_of_an_alias_that_can_be_reached_is_enough(configured):
    async with FakeProvider() as provider:
        configured(
            f'[providers.here]\nbase_url = "{provider.base_url}"\n[providers.gone]\nbase_url = "http://127.0.0.1:1/v1"\n'
            '[aliases]\nsafe = ["gone/m", "here/m"]\n[model]\ndefault = "safe"\n'
        )
        findings = await found("model")
    assert [level for level, _ in findings] == ["note", "ok"]


async def test_tls_is_tried_too():
    async with FakeProvider() as provider:
        address = provider.base_url.replace("http:", "https:")
        assert "SSL" in (await unreachable(address) or "")


@pytest.mark.virtual_time
async def test_a_host_that_says_nothing_is_not_waited_for():
    met = asyncio.Event()

    async def say_nothing(reader, writer):
        met.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await unreachable(f"https://127.0.0.1:{port}/v1") == f"no answer within {doctor.REACH_SECONDS:g} s"
        await met.wait()


async def test_tools_that_cannot_be_had_are_a_problem(configured):
    assert await found("tools", offline=True) == [("ok", "calculator, current_time")]
    configured('[tools]\npackages = ["no_such_module"]\n')
    ((level, text),) = await found("tools", offline=True)
    assert level == "problem"
    assert "'no_such_module' cannot be imported" in text


async def test_the_local_model_says_what_it_is(configured, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ((level, text),) = await found("local model", offline=True)
    if level == "note":
        assert "agentflow-rx[local]" in text
        return
    assert "not there yet" in text
    assert "`agentflow models pull` fetches it" in text
    configured('[model]\ndefault = "local"\nlocal_path = "no.gguf"\n')
    ((level, text),) = await found("model", offline=True)
    assert (level, "'no.gguf' does not exist" in text) == ("problem", True)


async def test_tools_that_may_mislead_a_model_are_told(configured, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_of_doctor.py").write_text("from agentflow import tool\n@tool\ndef order(path: int): ...\n")
    configured('[tools]\npackages = ["shop_of_doctor"]\n')
    (first, second) = await found("tools", offline=True)
    assert first == ("ok", "order")
    assert (second[0], "agentflow tools --lint" in second[1]) == ("note", True)


async def test_what_the_default_models_string_comes_to_is_told(configured):
    configured('[aliases]\nfast = ["ollama/qwen3", "vllm/m"]\n[model]\ndefault = "fast"\n')
    assert await found("model string", offline=True) == [("ok", "'fast' means ollama/qwen3, then vllm/m")]


async def test_the_exit_code_says_whether_something_is_wrong(agentflow):
    for model, code, words in (("scripted", 0, "no problem found"), ("openai", 1, "problems: 1")):
        async with agentflow("doctor", AGENTFLOW_MODEL__DEFAULT=model) as command:
            done = await command.finished()
        assert (done.code, done.err) == (code, "")
        assert words in done.out.splitlines()[-1]


async def test_programs_get_the_findings_as_json(agentflow):
    async with agentflow("doctor", "--json", "--offline", AGENTFLOW_MODEL__DEFAULT="openai") as command:
        done = await command.finished()
    findings = json.loads(done.out)
    assert done.code == 1
    assert {finding["subject"] for finding in findings if finding["level"] == "problem"} == {"model"}
