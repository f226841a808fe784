import hmac
import re

import pytest

from agentflow import Agent, Settings
from agentflow.errors import ConfigError
from agentflow.settings import KeySettings, ServerSettings
from agentflow.transports.auth import Caller, Keys, Tickets, check_bind, is_loopback, new_key
from agentflow.transports.refusals import Refused
from tests.transports.served import Frames, Gate, HandClock, read, served


def made(user="alice", *scopes):
    """A key, and the settings that let it in."""
    key_id, key, key_hash = new_key()
    return key, {key_id: {"hash": key_hash, "user": user, "scopes": scopes or ("user",)}}


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_a_key_is_kept_as_a_hash_only_and_is_never_the_same():
    made_keys = [new_key() for _ in range(100)]
    assert len({key for _, key, _ in made_keys}) == 100
    for key_id, key, key_hash in made_keys:
        assert key.startswith(f"af_{key_id}_")
        assert key.split("_", 2)[2] not in key_hash
        KeySettings(hash=key_hash, user="u")


def test_a_key_is_known_by_all_of_it():
    key, settings = made("alice", "user", "operator")
    keys = Keys({name: KeySettings(**its) for name, its in settings.items()})
    (key_id,) = settings
    assert keys.caller(key.encode()) == Caller("alice", key_id, frozenset({"user", "operator"}))
    other = "A" if key[-1] != "A" else "B"
    for wrong in (
        key[:-1],
        key[:-1] + other,
        key + "x",
        key.upper(),
        f" {key}",
        "",
        "x",
        "\xff\xfe",
        key * 100,
        new_key()[1],
    ):
        assert keys.caller(wrong.encode("latin-1")) is None


def test_keys_are_compared_in_constant_time_whether_they_are_known_or_not(monkeypatch):
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    key, settings = made()
    keys = Keys({name: KeySettings(**its) for name, its in settings.items()})
    for given in (key, new_key()[1], "garbage", ""):
        keys.caller(given.encode())
    assert len(compared) == 4
    assert all(isinstance(a, bytes) and isinstance(b, bytes) and len(a) == len(b) for a, b in compared)


BAD_HEADERS = {
    "none": {},
    "no bearer": {"Authorization": "Basic YTpi"},
    "no key": {"Authorization": "Bearer"},
    "garbage": {"Authorization": "Bearer x y z"},
    "a long one": {"Authorization": "Bearer " + "x" * 4000},
    "someone's": bearer(new_key()[1]),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
async def test_nobody_gets_in_without_a_key_where_there_are_keys(name):
    _, keys = made()
    async with served(keys=keys) as here:
        for method, path in (
            ("GET", "/api/agents"),
            ("POST", "/api/agent/chat"),
            ("GET", "/openapi.json"),
            ("GET", "/api/runs/x"),
        ):
            async with here.client.request(method, here.base + path, headers=BAD_HEADERS[name]) as response:
                assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
                assert (await response.json())["error"]["kind"] == "unauthorized"
        assert (await here.json("/healthz"))[0] == 200


async def test_bytes_that_are_no_text_are_a_wrong_key():
    _, keys = made()
    async with served(keys=keys) as here:
        head = b"GET /api/agents HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer "
        assert (await here.raw(head + b"\xff\xfe\r\n\r\n")).startswith(b"HTTP/1.1 401")


async def test_the_user_is_the_keys_and_no_other():
    key, keys = made("alice")
    async with served(keys=keys) as here:
        body = (await here.posted("/api/agent/chat", {"input": "x"}, headers=bearer(key)))[1]
        (event,) = await here.server.store.read(body["run_id"], 0, 1)
        assert event.user_id == "alice"
        assert (await here.posted("/api/agent/chat", {"input": "x", "user_id": "alice"}, headers=bearer(key)))[0] == 200
        status, body = await here.posted("/api/agent/chat", {"input": "x", "user_id": "bob"}, headers=bearer(key))
        assert (status, body["error"]["kind"]) == (403, "forbidden")
        assert (await here.json("/api/sessions?user_id=bob", headers=bearer(key)))[0] == 403


def test_only_an_operators_key_sees_all():
    assert not Caller().sees_all
    assert not Caller("u", "k", frozenset({"user"})).sees_all
    assert Caller("u", "k", frozenset({"operator"})).sees_all
    with pytest.raises(Refused, match="does not stand for the user 'b'"):
        Caller("a", "k").acting_for("b")
    assert Caller().acting_for("b") == Caller("b")


def test_a_ticket_is_good_once_and_for_a_while():
    clock = HandClock()
    tickets, caller = Tickets(clock), Caller("u", "k")
    ticket = tickets.issue(caller)
    assert (tickets.redeem(ticket), tickets.redeem(ticket)) == (caller, None)
    ticket = tickets.issue(caller)
    clock.advance(30.0)
    assert tickets.redeem(ticket) is None
    ticket = tickets.issue(caller)
    tickets.revoke(frozenset({"other"}))
    other = tickets.issue(Caller("v", "other"))
    tickets.revoke(frozenset({"k"}))
    assert (tickets.redeem(ticket), tickets.redeem(other)) == (None, Caller("v", "other"))
    assert tickets.redeem("\ud800") is None


def test_tickets_that_nobody_uses_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("agentflow.transports.auth._MAX_TICKETS", 3)
    tickets = Tickets(HandClock())
    issued = [tickets.issue(Caller("u")) for _ in range(5)]
    assert [tickets.redeem(ticket) is not None for ticket in issued] == [False, False, True, True, True]


async def test_a_browser_that_cannot_send_a_key_shows_a_ticket():
    key, keys = made("alice")
    async with served(keys=keys) as here:
        status, told = await here.posted("/api/tickets", {}, headers=bearer(key))
        assert (status, told["expires_in"]) == (200, 30.0)
        address = f"/api/agent/stream?message=hi&ticket={told['ticket']}"
        async with here.get(address) as response:
            assert response.status == 200
            assert read(await response.text())[-1][1]["type"] == "done"
        assert (await here.json(address))[0] == 401
        assert (await here.json("/api/agents?ticket=nonsense"))[0] == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_this_machine_needs_no_keys(host):
    assert is_loopback(host)
    check_bind(host, ServerSettings())


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "localhost.example.org", "", "127.0.0.1.example.org"]
)
def test_other_addresses_need_keys(host):
    with pytest.raises(ConfigError, match="agentflow keys new"):
        check_bind(host, ServerSettings())
    check_bind(host, Settings(server={"keys": made()[1]}).server)


async def status(here, **headers):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    answer = await here.raw(f"GET /api/agents HTTP/1.1\r\nConnection: close\r\n{lines}\r\n".encode())
    return int(answer[9:12])


GOOD_HOSTS = [
    "localhost",
    "127.0.0.1",
    "127.0.0.1:8080",
    "LOCALHOST:1",
    "[::1]",
    "[::1]:8080",
    "agents.example.org",
    "Agents.Example.org:443",
]
BAD_HOSTS = [
    "evil.example",
    "",
    "localhost.evil.example",
    "evil-localhost",
    "localhost@evil.example",
    "evil.example:localhost",
    "192.168.1.1",
    "[::2]",
    "[::1",
    "::1",
    "localhost:x",
    "localhost:8080:1",
    "xn--localhost-1",
    "agents.example.org.evil",
    "0.0.0.0",
    "127.0.0.1 evil",
    "agents.example.orgx",
]


async def test_a_name_that_is_not_this_servers_is_refused():
    async with served(allowed_hosts=["agents.example.org"]) as here:
        assert [host for host in GOOD_HOSTS if await status(here, Host=host) != 200] == []
        assert [host for host in BAD_HOSTS if await status(here, Host=host) != 403] == []


async def test_with_keys_any_name_will_do_unless_some_are_listed():
    key, keys = made()
    async with served(keys=keys) as here:
        assert await status(here, Host="any.example", **bearer(key)) == 200
    async with served(keys=keys, allowed_hosts=["agents.example.org"]) as here:
        assert await status(here, Host="any.example", **bearer(key)) == 403


GOOD_ORIGINS = ["http://localhost:8080", "https://localhost:8080", "HTTP://LOCALHOST:8080", "https://chat.example.org"]
BAD_ORIGINS = [
    "null",
    "http://evil.example",
    "http://localhost",
    "http://localhost:80800",
    "http://localhost:8080.evil.example",
    "http://evil.example/localhost:8080",
    "http://localhost:8080@evil.example",
    "http://user@localhost:8080",
    "https://chat.example.org:444",
    "https://chat.example.org.evil",
    "https://evilchat.example.org",
    "http://chat.example.org",
    "https://CHAT.example.org",
    "file://localhost:8080",
    "localhost:8080",
    "",
    "http://[",
    "http://127.0.0.1:8080",
]


async def test_pages_of_other_origins_are_refused():
    async with served(allowed_origins=["https://chat.example.org"]) as here:
        assert [one for one in GOOD_ORIGINS if await status(here, Host="localhost:8080", Origin=one) != 200] == []
        assert [one for one in BAD_ORIGINS if await status(here, Host="localhost:8080", Origin=one) != 403] == []


@pytest.mark.parametrize(
    ("site", "expected"),
    [("none", 200), ("same-origin", 200), ("same-site", 403), ("cross-site", 403), ("Cross-Site", 403), ("x", 403)],
)
async def test_what_another_sites_page_makes_a_browser_ask_is_refused(site, expected):
    async with served() as here:
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        async with here.get("/api/agent/stream?message=hi", headers=headers) as response:
            assert response.status == expected
            await response.read()
        assert (await here.json("/healthz", headers=headers))[0] == 200
        assert len(await here.server.store.list_runs()) == (expected == 200)


async def test_an_origin_that_is_allowed_may_read_answers_and_no_other():
    origin = "https://chat.example.org"
    async with served(allowed_origins=[origin]) as here:
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        async with here.get("/api/agents", headers=headers) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (200, origin)
            assert "Access-Control-Allow-Credentials" not in response.headers
        ask = headers | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        async with here.client.options(here.base + "/api/agent/chat", headers=ask) as response:
            assert response.status == 204
            assert "Content-Type" in response.headers["Access-Control-Allow-Headers"]
            assert response.headers["Access-Control-Allow-Origin"] == origin
        async with here.get("/api/agents", headers={"Origin": "https://evil.example"}) as response:
            assert "Access-Control-Allow-Origin" not in response.headers
            assert response.headers["Vary"] == "Origin"
    async with served() as here:
        async with here.client.options(here.base + "/api/agent/chat", headers=ask) as response:
            assert response.status == 403
        async with here.get("/api/agents") as response:
            assert not re.search("Access-Control", str(response.headers))


async def test_a_key_that_is_revoked_ends_what_it_has_open():
    model = Gate()
    (alices, alice), (bobs, bob) = made("alice"), made("bob")
    async with served(Agent(model=model), keys=alice | bob) as here:
        ask = {"input": "x", "detached": True}
        async with (
            here.post("/api/agent/stream", ask, headers=bearer(alices)) as hers,
            here.post("/api/agent/stream", ask, headers=bearer(bobs)) as his,
        ):
            reader = Frames(his)
            await model.waiting.wait()
            here.server.replace_keys(Settings(server={"keys": bob}).server.keys)
            await Frames(hers).rest()  # it ends
            assert (await here.json("/api/agents", headers=bearer(alices)))[0] == 401
            model.open.set()
            assert (await reader.rest())[-1]["type"] == "final"
        here.server.replace_keys({})
        assert (await here.json("/api/agents"))[0] == 401  # without any key left nobody gets in


async def test_no_secret_is_told_or_logged(caplog):
    caplog.set_level("DEBUG")
    key, keys = made("alice")
    async with served(keys=keys) as here:
        _, told = await here.posted("/api/tickets", {}, headers=bearer(key))
        ticket = told["ticket"]
        answers = []
        for headers, query in ((bearer(key + "x"), ""), (bearer(key), f"?ticket={ticket}"), ({}, f"?ticket={ticket}x")):
            for path in ("/api/agents", "/nowhere", "/api/agent/stream", "/openapi.json", "/api/runs/x"):
                async with here.get(path + query, headers=headers) as response:
                    answers.append(f"{response.headers} {await response.text()}")
    secrets = [key.split("_", 2)[2], ticket, next(iter(keys.values()))["hash"]]
    assert [one for one in secrets if one in caplog.text or one in "".join(answers)] == []
