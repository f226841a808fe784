import os
from pathlib import Path

import pytest

from agentflow.errors import ConfigError
from agentflow.settings import Settings, provider_key


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch, tmp_path):
    for variable in [name for name in os.environ if name.startswith("AGENTFLOW_")]:  # noqa: TID251  to clear it
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "agentflow.toml"
    path.write_text('[model]\ndefault = "from-file"\ntemperature = 0.5\nidle_timeout = "1m"\n', "utf-8")
    return path


def test_constructor_beats_environment_beats_file(file, monkeypatch):
    assert Settings().model.default == "from-file"
    monkeypatch.setenv("AGENTFLOW_MODEL__DEFAULT", "from-environment")
    assert Settings().model.default == "from-environment"
    settings = Settings(model={"default": "given"})
    assert settings.model.default == "given"
    assert (settings.model.temperature, settings.model.idle_timeout) == (0.5, 60.0)


def test_the_file_may_be_named(file, monkeypatch, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text('[aliases]\nfast = "openai/x"\n', "utf-8")
    assert Settings(config=other).aliases == {"fast": "openai/x"}
    monkeypatch.setenv("AGENTFLOW_CONFIG", str(other))
    settings = Settings()
    assert (settings.aliases, settings.model.default) == ({"fast": "openai/x"}, None)
    assert settings.config == other


def test_every_kind_of_value_can_come_from_the_environment(monkeypatch):
    for name, value in {
        "MODEL__TEMPERATURE": "0.2",
        "MODEL__MAX_TOKENS": "100",
        "TOOLS__PACKAGES": "shop.tools, more",
        "PROVIDERS__OPENAI__API_KEY": "sk-0123456789",
        "ALIASES__FAST": "openai/x",
        "ALIASES__SAFE": '["openai/x", "groq"]',
        "MODEL__ALLOWED": "openai/*, groq/*",
        "MODEL__RETRIES__CAP": "2s",
        "PROVIDERS__OPENAI__PROFILE__CALL_IDS": "nine",
        "LIMITS__CONNECTIONS": "100",
        "POOLS__DB__SIZE": "3",
    }.items():
        monkeypatch.setenv(f"AGENTFLOW_{name}", value)
    settings = Settings()
    assert (settings.model.temperature, settings.model.max_tokens) == (0.2, 100)
    assert settings.tools.packages == ("shop.tools", "more")
    assert settings.providers["openai"].api_key.get_secret_value() == "sk-0123456789"
    assert settings.aliases == {"fast": "openai/x", "safe": ("openai/x", "groq")}
    assert settings.model.allowed == ("openai/*", "groq/*")
    assert (settings.model.retries.attempts, settings.model.retries.cap) == (3, 2.0)
    assert settings.providers["openai"].profile.model_dump(exclude_unset=True) == {"call_ids": "nine"}
    assert settings.limits.connections == 100
    assert (settings.pools["db"].size, settings.pools["db"].queue) == (3, 256)


def test_a_provider_is_put_together_from_the_file_and_the_environment(file, monkeypatch):
    file.write_text('[providers.groq]\nbase_url = "http://h/v1"\n[aliases]\nsafe = ["groq", "openai"]\n', "utf-8")
    monkeypatch.setenv("AGENTFLOW_PROVIDERS__GROQ__API_KEY", "sk-0123456789")
    settings = Settings()
    groq = settings.providers["groq"]
    assert (groq.base_url, groq.api_key.get_secret_value()) == ("http://h/v1", "sk-0123456789")
    assert settings.aliases == {"safe": ("groq", "openai")}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"modl": {}}, "unknown setting 'modl'; the nearest known one is 'model.default'"),
        ({"model": {"defualt": "x"}}, "unknown setting 'model.defualt'; the nearest known one is 'model.default'"),
        (
            {"providers": {"x": {"apikey": "y"}}},
            "unknown setting 'providers.x.apikey'; the nearest known one is 'providers.x.api_key'",
        ),
        (
            {"providers": {"x": {"profile": {"temprature": False}}}},
            "'providers.x.profile.temprature'; the nearest known one is 'providers.x.profile.temperature'",
        ),
        ({"model": {"retries": {"tries": 1}}}, "'model.retries.tries'; the nearest known one is 'model.retries."),
        ({"pools": {"db": {"sise": 1}}}, "'pools.db.sise'; the nearest known one is 'pools.db.size'"),
        ({"chian": {}}, "the nearest known one is 'chain.max_iterations'"),
    ],
)
def test_unknown_keys_name_the_nearest(values, words):
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("AGENTFLOW_MODL", "unknown variable 'AGENTFLOW_MODL'; the nearest known one is 'AGENTFLOW_MODEL__DEFAULT'"),
        ("AGENTFLOW_MODLE__DEFAULT", "the nearest known one is 'AGENTFLOW_MODEL__DEFAULT'"),
        ("AGENTFLOW_CHIAN__TIMOUT", "the nearest known one is 'AGENTFLOW_CHAIN__TIMEOUT'"),
        ("AGENTFLOW_POLS__DB__SISE", "the nearest known one is 'AGENTFLOW_POOLS__DB__SIZE'"),
        ("AGENTFLOW_CONFG__X", "the nearest known one is 'AGENTFLOW_CONFIG'"),
        ("AGENTFLOW_MODEL__DEFUALT", "unknown setting 'model.defualt'"),
        ("AGENTFLOW_MODEL", "variable 'AGENTFLOW_MODEL' stands for a whole section"),
        ("agentflow_model", "such as AGENTFLOW_MODEL__DEFAULT=..."),
        ("AGENTFLOW_MODEL__RETRIES", "such as AGENTFLOW_MODEL__RETRIES__ATTEMPTS=..."),
        ("AGENTFLOW_ALIASES", "such as AGENTFLOW_ALIASES__<NAME>=..."),
        ("AGENTFLOW_PROVIDERS__OPENAI", "such as AGENTFLOW_PROVIDERS__OPENAI__BASE_URL=..."),
    ],
)
@pytest.mark.parametrize("value", ["sk-0123456789", "{broken", "[1]"])
def test_variables_that_cannot_be_meant_are_errors_too(monkeypatch, variable, words, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        Settings()
    assert words in str(caught.value)
    assert "0123456789" not in str(caught.value)


def test_a_section_may_be_one_variable_of_json(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", ' {"default": "openai/x", "retries": {"attempts": 1}}')
    monkeypatch.setenv("AGENTFLOW_MODEL__TEMPERATURE", "0.5")
    model = Settings().model
    assert (model.default, model.retries.attempts, model.temperature) == ("openai/x", 1, 0.5)


@pytest.mark.parametrize("text", ["a, b.c", '["a", "b.c"]', ' [ "a","b.c"]'])
def test_names_in_a_variable_are_separated_by_commas_or_a_json_list(monkeypatch, text):
    monkeypatch.setenv("AGENTFLOW_TOOLS__PACKAGES", text)
    assert Settings().tools.packages == ("a", "b.c")


def test_names_that_are_neither_say_what_is_expected(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_TOOLS__PACKAGES", '["a"')
    with pytest.raises(ConfigError, match=r"'tools.packages': expected names with commas .* not '\[\"a\"'"):
        Settings()


def test_a_file_that_is_wrong_is_named(file, tmp_path):
    with pytest.raises(ConfigError, match=r"'.*nowhere.toml' does not exist"):
        Settings(config=tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match=f"'{'x' * 5000}' cannot be read"):
        Settings(config="x" * 5000)
    file.write_text('[model]\ndefualt = "x"\n', "utf-8")
    with pytest.raises(ConfigError, match=r"unknown setting 'model.defualt'"):
        Settings()
    for raw in (b"[model\n", b"a = \xff\n", b"a = " + b"[" * 5000, b"a = " + b"9" * 5000):
        file.write_bytes(raw)
        with pytest.raises(ConfigError, match=r"'.*agentflow.toml' is not valid TOML"):
            Settings()


@pytest.mark.parametrize("given", ["config", "variable", "default"])
@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(path)],
    ids=["folder", "pipe", "broken link", "link to itself"],
)
def test_what_is_no_file_is_named(monkeypatch, tmp_path, make, given):
    path = tmp_path / "agentflow.toml"
    make(path)
    if given == "variable":
        monkeypatch.setenv("AGENTFLOW_CONFIG", str(path))
    with pytest.raises(ConfigError, match=r"'.*agentflow.toml' is no file, nor a link to one"):
        Settings(**({"config": path} if given == "config" else {}))


@pytest.mark.parametrize(
    "name", ["MODEL", "MODEL__ALLOWED", "PROVIDERS__X", "ALIASES", "ALIASES__X", "TOOLS__PACKAGES", "POOLS", "CONFIG"]
)
@pytest.mark.parametrize("piece", ["[", '{"a":'], ids=["lists", "objects"])
def test_a_variable_that_is_nested_too_deeply_is_named(monkeypatch, name, piece):
    monkeypatch.setenv(f"AGENTFLOW_{name}", piece * 5000)
    with pytest.raises(ConfigError) as caught:
        Settings()
    assert str(caught.value) == f"the JSON in variable 'AGENTFLOW_{name}' is nested too deeply"


@pytest.mark.parametrize("name", ["MODEL__DEFAULT", "MODEL", "ALIASES__X", "PROVIDERS__X__API_KEY", "TOOLS__PACKAGES"])
def test_a_variable_whose_bytes_are_no_text_is_named(monkeypatch, name):
    monkeypatch.setenv(f"AGENTFLOW_{name}", os.fsdecode(b"openai/\xff"))
    with pytest.raises(ConfigError) as caught:
        Settings()
    assert str(caught.value) == f"variable 'AGENTFLOW_{name}' is not valid UTF-8"


def test_a_files_name_may_be_any_bytes(monkeypatch, tmp_path):
    path = tmp_path / os.fsdecode(b"settings-\xff.toml")
    path.write_text('[model]\ndefault = "openai/x"\n', "utf-8")
    monkeypatch.setenv("AGENTFLOW_CONFIG", str(path))
    monkeypatch.setenv("AGENTFLOW_MODEL__LOCAL_PATH", str(path))
    settings = Settings()
    assert (settings.model.default, settings.config, settings.model.local_path) == ("openai/x", path, path)


def test_a_value_in_place_of_a_section_is_told_the_sections_keys():
    for values, words in (
        ({"model": "openai"}, "setting 'model' is a section: set its keys, such as 'model.default'"),
        ({"pools": {"db": 3}}, "setting 'pools.db' is a section: set its keys, such as 'pools.db.size'"),
        ({"aliases": ["x"]}, "setting 'aliases' is a section: set its keys, such as 'aliases.<name>'"),
    ):
        with pytest.raises(ConfigError) as caught:
            Settings(**values)
        assert str(caught.value) == words


def test_secrets_are_never_shown():
    settings = Settings(providers={"openai": {"api_key": "sk-0123456789"}})
    assert "0123456789" not in repr(settings) + str(settings) + settings.model_dump_json()
    with pytest.raises(ConfigError) as caught:
        Settings(providers={"openai": {"api_key": ["sk-0123456789"]}})
    assert "0123456789" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_providers_key_is_read_from_its_variable(monkeypatch):
    monkeypatch.setenv("ACME_API_KEY", " sk-0123456789\n")
    key = provider_key("ACME_API_KEY")
    assert key is not None
    assert key.get_secret_value() == "sk-0123456789"
    assert "0123456789" not in repr(key)
    monkeypatch.setenv("ACME_API_KEY", " ")
    assert provider_key("ACME_API_KEY") is None
    monkeypatch.delenv("ACME_API_KEY")
    assert provider_key("ACME_API_KEY") is None
