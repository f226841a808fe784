"""Secrets are hidden whatever they are called; what only looks like an id of ours is given elsewhere."""

import uuid

import pytest

from agentflow.observability.masking import Masks

KEYS = [
    "sk-proj-abcdefghijklmnop1234",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "0123456789abcdef0123456789abcdef",
    "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "af_0123456789ab_abcdefghijklmnopqrstuvwxyzabcdefghijklmnopq",  # of this server
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "form", ["{}", "user {} logged in", "https://x.example/?a=1&key={}", "Authorization: Bearer {}"]
)
def test_what_looks_like_a_key_is_hidden_in_any_text(key, form):
    hidden = Masks().hide(form.format(key))
    assert key not in hidden
    assert "***" in hidden


def test_passwords_in_addresses_and_after_their_names_are_hidden():
    hidden = Masks().hide("redis://user:hunter2@db/0 password=correct-horse token: 'abcd1234'")
    assert not any(secret in hidden for secret in ("hunter2", "correct-horse", "abcd1234"))


def test_known_secrets_are_hidden_though_they_look_like_nothing():
    masks = Masks(["open sesame please", "short"])
    assert masks.hide("say open sesame please now") == "say *** now"
    assert masks.hide("a short text") == "a short text"


@pytest.mark.parametrize(
    "text",
    [
        str(uuid.UUID(int=2**127 + 5)),
        "the tool get_current_weather_by_city failed with status 503 after 2 attempts",
        "/usr/lib/python3.11/site-packages/agentflow/observability/metrics.py",
        "openai/gpt-5-mini",
        "好的，明白了 — tout va bien",
    ],
)
def test_ordinary_texts_stay_as_they_are(text):
    assert Masks(["some-known-secret"]).hide(text) == text


@pytest.mark.parametrize("piece", ["a", "a1B", "sk-", "://", "bearer ", "key=", "eyJ.", "af_", "_-", "::", " \n"])
def test_hostile_texts_cost_time_in_proportion(piece):
    text = piece * (1024 * 1024 // len(piece))  # with time in its square this would not end within the test's
    assert len(Masks().hide(text)) <= len(text)
