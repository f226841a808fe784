import re

import pytest

from agentflow.cli.models import check, overview
from agentflow.models.scripted import ScriptedModel
from agentflow.settings import Settings
from agentflow.testing import FakeProvider, Reset, Stall, recorded, status, text

TOO_FEW = b'{"error":{"message":"Could not finish the message because max_tokens or model output limit was reached."}}'


@pytest.fixture
def ask(agentflow):
    """`await ask(provider, "check", ...)`: an `agentflow models` that knows the provider as "mine"."""

    async def run(provider, *arguments, **variables):
        own = {"AGENTFLOW_PROVIDERS__MINE__BASE_URL": provider.base_url}
        async with agentflow("models", *arguments, **own, **variables) as command:
            return await command.finished()

    return run


def test_the_overview_has_a_line_for_each_provider_and_alias(monkeypatch):
    monkeypatch.setenv("GROQ_API_KEY", "sk-0123456789")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    own = {"mine": {"base_url": "http://h:1/v1"}}
    lines = overview(Settings(providers=own, aliases={"safe": ["openai", "groq"]}, model={"default": "safe"}))
    rows = [re.split(r"\s{2,}", line) for line in lines]
    assert ["openai", "missing", "OPENAI_API_KEY", "gpt-5-mini", "https://api.openai.com/v1"] in rows
    assert ["mine", "not needed", "-", "-", "http://h:1/v1"] in rows
    assert ["safe", "openai, then groq"] in rows
    assert ["nv/…", "nvidia/…"] in rows
    assert next(row for row in rows if row[0] == "groq")[1] == "set"
    assert lines[-1] == "without --model: safe"
    assert "0123456789" not in "".join(lines)


async def test_the_providers_are_shown(ask):
    async with FakeProvider() as provider:
        done = await ask(provider)
    assert (done.code, done.err) == (0, "")
    assert provider.base_url in done.out
    assert "without --model: local, if it is installed" in done.out


async def test_the_models_of_a_server_are_listed_one_a_line(ask):
    listed = recorded(b'{"data":[{"id":"b\\u001b[2J"},{"id":"a"}]}', content_type="application/json")
    async with FakeProvider(listed) as provider:
        done = await ask(provider, "--provider", "mine")
    assert (done.code, done.out, done.err) == (0, "a\nb[2J\n", "")  # it cannot drive the terminal


async def test_the_models_of_an_ollama_server_are_listed_too(ask):
    listed = recorded(b'{"models":[{"name":"qwen3:4b"}]}', content_type="application/json")
    async with FakeProvider(listed) as provider:
        address = provider.base_url.removesuffix("/v1")
        done = await ask(provider, "--provider", "ollama", AGENTFLOW_PROVIDERS__OLLAMA__BASE_URL=address)
    assert (done.code, done.out) == (0, "qwen3:4b\n")


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (status(401), 2, "check the provider's key"),
        (status(400), 1, "answered 400"),
        (status(500), 1, "answered 500"),
        ((Reset(),), 2, "check that the server runs"),
    ],
    ids=["401", "400", "500", "reset"],
)
async def test_a_server_that_does_not_list_its_models_is_one_line(ask, reply, code, words):
    async with FakeProvider(respond=lambda _: reply) as provider:  # aiohttp repeats a GET that a reset has ended
        done = await ask(provider, "--provider", "mine")
    assert (done.code, done.out, len(done.err.splitlines())) == (code, "", 1)
    assert words in done.err


async def test_a_check_asks_for_one_token_and_says_how_long_it_took(ask):
    async with FakeProvider(text("Hello", finish="length")) as provider:
        done = await ask(provider, "check", "mine/m")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(rf"mine/m at {provider.base_url}: ok, \d+ ms\n", done.out)
    body = provider.requests[0].body
    assert (body["model"], body["max_tokens"], len(body["messages"])) == ("m", 1, 1)


async def test_a_check_of_an_address_takes_the_name_of_its_model(ask):
    async with FakeProvider(text("Hello")) as provider:
        done = await ask(provider, "check", "m", "--base-url", provider.base_url)
    assert done.code == 0
    assert provider.requests[0].body["model"] == "m"


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (status(401), 2, "check the provider's key"),
        (status(404), 2, "check the model"),
        (status(400, b'{"message":"Invalid model: m"}'), 2, "check the model"),
        (status(429), 1, "failed (rate_limit)"),
        (status(500), 1, "failed (status)"),
        ((Reset(),), 2, "check that the server runs"),
    ],
    ids=["401", "404", "400 that names the model", "429", "500", "reset"],
)
async def test_a_model_that_does_not_answer_is_one_line(ask, reply, code, words):
    async with FakeProvider(reply) as provider:
        done = await ask(provider, "check", "mine/m")
    assert (done.code, done.out, len(done.err.splitlines())) == (code, "", 1)
    assert done.err.startswith(f"agentflow: mine/m at {provider.base_url}: ")
    assert words in done.err
    assert len(provider.requests) == 1


async def test_a_model_that_one_token_is_too_few_for_is_there(ask):
    async with FakeProvider(status(400, TOO_FEW)) as provider:
        done = await ask(provider, "check", "mine/m")
    assert (done.code, done.err) == (0, "")


async def test_each_model_of_an_alias_is_asked_and_the_worst_counts(ask):
    async with FakeProvider(text("Hi"), status(500), text("Hi")) as provider:
        done = await ask(provider, "check", "safe", AGENTFLOW_ALIASES__SAFE='["mine/a", "mine/b", "mine/c"]')
    assert done.code == 1
    assert [line.partition(" ")[0] for line in done.out.splitlines()] == ["mine/a", "mine/c"]
    assert "mine/b" in done.err


async def test_ctrl_c_ends_a_check(agentflow):
    async with FakeProvider((Stall(),)) as provider:
        async with agentflow("models", "check", "m", "--base-url", provider.base_url) as command:
            await provider.received()
            command.interrupt()
            done = await command.finished()
        await provider.idle()
    assert (done.code, done.out, done.err) == (130, "", "")


async def test_a_model_without_an_address_is_checked_too():
    said, complaints = [], []
    assert await check([ScriptedModel("Hello.")], said.append, complaints.append) == 0
    assert len(said) == 1
    assert said[0].startswith("scripted/scripted: ok")
    assert complaints == []
