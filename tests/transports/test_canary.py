"""Secrets that are known when seen: through answers, errors and crashes none is in what is told, logged or kept.

What a model is called with and what a tool is called with are what a run's log is for: a password there is seen by whom
the run belongs to, and by operators. It stands in no log of the server and in no answer about anything else.
"""

import secrets

import pytest

from agentflow import Agent, Settings, tool
from agentflow.stores.redis import RedisStore
from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import FakeProvider, Reset, status, text, tool_calls
from tests.transports.every_route import EXAMPLES, ROUTES, target
from tests.transports.served import served
from tests.transports.sockets import connected
from tests.transports.test_auth import bearer, made

PROVIDER_KEY = f"sk-{secrets.token_urlsafe(24)}"
PASSWORD = secrets.token_urlsafe(12)
RETRIES = {"attempts": 1}


def saying(message):
    """An error of a provider that says it."""
    return {"error": {"message": message, "type": "invalid_request_error", "code": "invalid"}}


SCRIPTS = {
    "an answer": [text("Fine.")],
    "a key that the provider does not take": [status(401, saying(f"Incorrect API key provided: {PROVIDER_KEY}."))],
    "a key in a refusal": [status(400, saying(f"header was 'Authorization: Bearer {PROVIDER_KEY}'"))],
    "a key in what is no JSON": [status(500, f"<html>{PROVIDER_KEY}</html>".encode())],
    "a provider that crashes": [[Reset()]],
    "a tool that fails": [tool_calls(("connect", {"host": "db"})), text("It failed.")],
    "a tool that is told a password": [tool_calls(("log_in", {"password": PASSWORD})), text("You are in.")],
}


@tool
def connect(host: str) -> str:
    """Connect."""
    raise ConnectionError(f"postgresql://app:{PASSWORD}@{host} refused, api_key={PROVIDER_KEY}")


@tool
def log_in(password: str) -> str:
    """Log in."""
    return "so be it"


def is_for_developers(record):
    """The traceback of a tool, which says at DEBUG what the tool's own code said; `serve` writes it with stars."""
    return (record.name, record.levelname) == ("agentflow.tools.execution", "DEBUG")


class Heard:
    """Collects all that a client is told."""

    def __init__(self, here, headers):
        self.here = here
        self.headers = headers
        self.told = []

    async def ask(self, method, address, **options):
        headers = self.headers | options.pop("headers", {})
        async with self.here.client.request(method, self.here.base + address, headers=headers, **options) as response:
            self.told.append(f"{response.status} {response.headers}")
            endless = address.startswith("/api/events") and response.status == 200
            if not endless and response.status != 101:
                self.told.append(await response.text())
            return response.status

    def hits(self, *canaries):
        return [one for one in self.told if any(canary in one for canary in canaries)]


@pytest.mark.parametrize("name", SCRIPTS)
async def test_no_secret_is_told_logged_or_kept(name, caplog, capfd, tmp_path):
    caplog.set_level("DEBUG")
    key, keys = made("ann", "user", "operator")
    canaries = [key, key.split("_", 2)[2], next(iter(keys.values()))["hash"], PROVIDER_KEY, PASSWORD]
    store = SqliteStore(tmp_path / "kept.db")
    async with FakeProvider(*SCRIPTS[name] * 4, strict=False) as provider:
        settings = Settings(server={"keys": keys, "shutdown_grace": 0.2}, model={"retries": RETRIES})
        agent = Agent(
            model="openai/gpt-5-mini",
            base_url=provider.base_url,
            api_key=PROVIDER_KEY,
            tools=[connect, log_in],
            store=store,
            settings=settings,
        )
        async with served(agent, settings=settings) as here:
            heard = Heard(here, bearer(key))
            async with heard.here.post("/api/tickets", {}, headers=bearer(key)) as response:
                ticket = (await response.json())["ticket"]
            await heard.ask("POST", "/api/agent/chat", json={"input": "x", "session_id": "s"})
            await heard.ask("POST", "/api/agent/stream", json={"input": "x", "session_id": "s"})
            await heard.ask("GET", f"/api/agent/stream?message=x&ticket={ticket}", headers={"Authorization": ""})
            await heard.ask("POST", "/v1/chat/completions", json=EXAMPLES[CHAT.body])
            runs = [record.run_id for record in await store.list_runs()]
            for run_id in runs:
                await heard.ask("GET", f"/api/runs/{run_id}")
            await heard.ask("GET", "/api/sessions/s")
            of_runs, heard.told = heard.told, []
            for route in ROUTES:
                if route.method == "GET" and not route.path.endswith("/ws"):
                    await heard.ask("GET", target(route))
                await heard.ask(route.method, target(route), headers={"Authorization": f"Bearer {key}x"})
            kept = [str(event) for run_id in runs for event in await store.read(run_id, 0, 1000)]
    await store.aclose()
    out, err = capfd.readouterr()
    logged = [out, err, *(caplog.handler.format(one) for one in caplog.records if not is_for_developers(one))]
    canaries.append(ticket)
    on_disk = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    in_runs = [canary for canary in canaries if canary != PASSWORD or "password" not in name]  # where it is an argument
    assert [canary for canary in canaries if any(canary in one for one in logged)] == []
    assert [canary for canary in canaries if heard.hits(canary)] == []
    assert [canary for canary in in_runs if any(canary in one for one in of_runs + kept)] == []
    assert [canary for canary in in_runs if canary.encode() in on_disk] == []
    assert (PASSWORD.encode() in on_disk) == ("password" in name)  # what is there is found
    assert len(kept) > 4


CHAT = next(route for route in ROUTES if route.path == "/v1/chat/completions")


async def test_the_password_of_a_store_that_does_not_answer_is_neither_told_nor_logged(
    caplog, capfd, unused_tcp_port, monkeypatch
):
    monkeypatch.undo()  # what is kept cannot be looked at here
    caplog.set_level("DEBUG")
    store = RedisStore(f"redis://app:{PASSWORD}@127.0.0.1:{unused_tcp_port}/0", call_timeout=0.2)
    async with served(Agent(model="scripted", store=store)) as here:
        heard = Heard(here, {})
        for route in ROUTES:
            if not route.path.endswith("/ws"):
                body = {"json": EXAMPLES[route.body]} if route.body else {}
                await heard.ask(route.method, target(route), **body)
        async with connected(here) as client:
            heard.told.append(str(await client.refused("follow", run_id="r")))
    await store.aclose()
    assert "503" in str(heard.told)
    assert heard.hits(PASSWORD) == []
    assert [one for one in (caplog.text, *capfd.readouterr()) if PASSWORD in one] == []
