import os

import pytest
from pydantic import ValidationError

from agentflow.errors import ConfigError
from agentflow.settings import Settings


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch, tmp_path):
    for variable in [name for name in os.environ if name.startswith("AGENTFLOW_")]:  # noqa: TID251  to clear it
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


def test_the_defaults():
    settings = Settings()
    assert settings.model.default is None
    assert (settings.model.connect_timeout, settings.model.first_byte_timeout) == (5.0, 30.0)
    assert (settings.model.idle_timeout, settings.model.total_timeout) == (30.0, 300.0)
    assert (settings.chain.max_iterations, settings.chain.max_parallel_tools, settings.chain.timeout) == (15, 16, 600.0)
    assert (settings.flow.window_ms, settings.flow.max_bytes) == (200, 524288)
    assert settings.limits.run_log_bytes == 16 * 1024 * 1024
    assert (settings.providers, settings.aliases, settings.pools, settings.tools.packages) == ({}, {}, {}, ())


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (5, 5.0),
        (0.5, 0.5),
        ("7", 7.0),
        ("30s", 30.0),
        ("5m", 300.0),
        ("24h", 86400.0),
        ("250ms", 0.25),
        (" 1d ", 86400.0),
    ],
)
def test_durations_are_seconds_or_have_a_unit(value, seconds):
    assert Settings(chain={"timeout": value}).chain.timeout == seconds


@pytest.mark.parametrize("value", ["", "soon", "5 parsecs", "m", "1h30m", "nan", "inf", 0, -1, "-1s", [], None])
def test_what_is_no_duration_is_refused(value):
    with pytest.raises(ConfigError, match=r"'chain\.timeout'"):
        Settings(chain={"timeout": value})


def test_names_that_are_nested_too_deeply_are_refused():
    with pytest.raises(ConfigError, match=r"'tools.packages': expected names"):
        Settings(tools={"packages": "[" * 5000})


def test_values_out_of_range_name_their_key():
    for values in (
        {"chain": {"max_iterations": 0}},
        {"pools": {"db": {"size": "many"}}},
        {"flow": {"window_ms": -1}},
        {"flow": {"window_ms": float("inf")}},
        {"limits": {"connections": 2**63}},
        {"model": {"max_tokens": "9" * 5000}},
        {"model": {"temperature": float("nan")}},
    ):
        ((section, keys),) = values.items()
        with pytest.raises(ConfigError, match=rf"setting '{section}\.{next(iter(keys))}"):
            Settings(**values)


def test_settings_do_not_change():
    settings = Settings()
    for change in (lambda: setattr(settings, "aliases", {}), lambda: setattr(settings.chain, "timeout", 1.0)):
        with pytest.raises(ValidationError):
            change()


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        ({"per": "user", "requests": "60"}, "requests"),
        ({"per": "user", "requests": "0/m"}, "requests"),
        ({"per": "somebody", "requests": "1/m"}, "per"),
        ({"per": "tool", "tokens": "1/m"}, "tokens cannot be limited per tool"),
        ({"per": "user", "connections": 1}, "connections cannot be limited per user"),
        ({"per": "key"}, "nothing is limited: set one of concurrent, connections, requests, tokens"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_with_what_can(rate, message):
    with pytest.raises(ConfigError, match=message):
        Settings(limits={"rates": {"mine": rate}})


def test_limits_come_from_the_environment_too(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_LIMITS__RATES__USERS__PER", "user")
    monkeypatch.setenv("AGENTFLOW_LIMITS__RATES__USERS__ONLY", "guest-*,anna")
    monkeypatch.setenv("AGENTFLOW_LIMITS__RATES__USERS__TOKENS", "1000/h")
    rate = Settings().limits.rates["users"]
    assert (rate.per, rate.only, rate.tokens) == ("user", ("guest-*", "anna"), "1000/h")
