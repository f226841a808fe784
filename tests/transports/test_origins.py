"""Which pages and which names get in: on every route there is, before anything is done.

Which origins and hosts are whose, one by one, is shown in `test_auth` and, for upgrades, in `test_websocket_frames`.
"""

import pytest

from tests.transports.every_route import EXAMPLES, ROUTES, is_refusal, name_of, target
from tests.transports.served import served
from tests.transports.sockets import PATH, handshake
from tests.transports.test_auth import bearer, made

CHAT_PAGE = "https://chat.example.org"
FORBIDDEN = [
    {"Host": "evil.example"},
    {"Host": "localhost.evil.example"},
    {"Host": "evil.example", "Origin": "http://evil.example"},  # a name that was made to point here, and its page
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": f"{CHAT_PAGE}.evil.example"},
    {"Host": "evil.example", "Origin": CHAT_PAGE},
]
EXCEPT_OPEN = [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]  # what health checks do not look at


def options_of(route, **headers):
    """What goes with a request for the route, as it should be but for these headers."""
    body = {"json": EXAMPLES[route.body]} if route.body else {}
    upgrade = {}
    if route.path == PATH:
        lines = handshake("").decode().splitlines()[2:-1]  # all but the host
        upgrade = dict(line.split(": ", 1) for line in lines if line)
    return {"headers": upgrade | headers} | body


async def answer(here, route, **headers):
    """The status, the headers and the body, which for what is not refused is not waited for."""
    request = here.client.request(route.method, here.base + target(route), **options_of(route, **headers))
    async with request as response:
        body = await response.json() if response.status >= 400 else None
        return response.status, response.headers, body


async def refusals(here, routes, **headers):
    """The routes that do not refuse such a request with 403, or let a page that is not allowed read why."""
    wrong = []
    for route in routes:
        status, told, body = await answer(here, route, **headers)
        may_read = "Access-Control-Allow-Origin" in told and headers.get("Origin") != CHAT_PAGE
        if status != 403 or not is_refusal(route.path, body) or may_read:
            wrong.append((name_of(route), status, body))
    return wrong


@pytest.mark.parametrize("headers", FORBIDDEN, ids=str)
async def test_strangers_are_refused_on_every_route(headers):
    async with served(allowed_origins=[CHAT_PAGE]) as here:
        assert await refusals(here, ROUTES, **headers) == []
        assert await here.server.store.list_runs() == ()
        assert len(here.server.connections) == 0


async def test_the_host_must_be_right_even_where_the_origin_is_allowed():
    async with served(allowed_origins=[CHAT_PAGE], allowed_hosts=["agents.example.org"]) as here:
        assert await refusals(here, ROUTES, Host="evil.example", Origin=CHAT_PAGE) == []


@pytest.mark.parametrize("headers", EXCEPT_OPEN, ids=str)
async def test_what_other_sites_make_a_browser_ask_is_refused_without_an_origin_too(headers):
    async with served() as here:
        assert await refusals(here, [route for route in ROUTES if route.scope != "open"], **headers) == []
        assert await here.server.store.list_runs() == ()


async def test_a_key_opens_no_door_to_another_origin():
    key, keys = made("ann", "user", "operator")
    async with served(keys=keys) as here:
        assert await refusals(here, ROUTES, Origin="https://evil.example", **bearer(key)) == []
        assert await refusals(here, ROUTES, Origin="null", **bearer(key)) == []


async def test_a_cookie_is_no_key():
    key, keys = made("ann", "user", "operator")
    async with served(keys=keys) as here:
        for route in ROUTES:
            if route.scope != "open":
                status, _, body = await answer(here, route, Cookie=f"key={key}; Authorization=Bearer {key}")
                assert (status, is_refusal(route.path, body)) == (401, True), name_of(route)


async def test_the_servers_own_pages_and_those_allowed_are_let_in():
    async with served(allowed_origins=[CHAT_PAGE]) as here:
        for route in ROUTES:
            for origin in (here.base, CHAT_PAGE):
                status, told, _ = await answer(here, route, Origin=origin)
                assert status != 403, (name_of(route), origin)
                if status != 101:
                    assert told.get("Access-Control-Allow-Origin") == (CHAT_PAGE if origin == CHAT_PAGE else None)
                assert "Access-Control-Allow-Credentials" not in told


async def test_no_route_may_be_read_from_elsewhere_unless_it_is_said_so():
    async with served() as here:
        for route in ROUTES:
            _, told, _ = await answer(here, route)
            assert not [name for name in told if name.startswith("Access-Control")], name_of(route)
            ask = {"Origin": "https://evil.example", "Access-Control-Request-Method": route.method}
            async with here.client.options(here.base + target(route), headers=ask) as response:
                assert response.status == 403
                assert not [name for name in response.headers if name.startswith("Access-Control")]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_what_a_form_can_send_is_refused(kind):
    async with served() as here:
        for route in ROUTES:
            if route.body is not None:
                request = here.client.request(
                    route.method, here.base + target(route), data=b'{"input": "x"}', headers={"Content-Type": kind}
                )
                async with request as response:
                    assert response.status == 415, name_of(route)
        assert await here.server.store.list_runs() == ()
