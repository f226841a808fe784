"""A page of somebody else's with a plain EventSource, in a real browser, against a server that it was not made for."""

import json
from urllib.parse import urlencode

import pytest
from aiohttp import web

from agentflow import Agent, Settings, tool
from agentflow.testing import FakeProvider, call, text, tool_calls
from agentflow.transports import create_app, setup
from tests.transports.browser.visits import LOST, visiting
from tests.transports.paused import WAIT, Paused
from tests.transports.served import listening

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = "openrouter/anthropic/claude-sonnet-4"

HEAD = "<!doctype html><link rel=icon href=data:,>"

# As such a page is written; `shown` is what the tests look at.
SCRIPT = """
const source = new EventSource('ADDRESS');
const shown = {text: '', tools: [], last: null, final: null, opened: 0};
window.shown = shown;
source.onopen = () => { shown.opened += 1; };
source.onmessage = (event) => {
  const data = JSON.parse(event.data);
  switch (data.type) {
    case 'content':
      shown.text += data.rawContent;
      break;
    case 'tool_call':
    case 'tool_result':
      shown.tools.push([data.type, JSON.parse(data.data)]);
      break;
    case 'done':
      shown.final = data.rawContent;
      AT_DONE
      break;
    case 'error':
      shown.final = data.rawContent;
      source.close();
      break;
  }
  shown.last = data.type;
};
source.onerror = () => { if (source.readyState === EventSource.CLOSED) shown.last = 'closed'; };
"""


@tool
def search(query: str) -> str:
    """Search."""
    return f"nothing about {query}"


def script(prefix="", close="source.close();", **query):
    asked = {"message": "帮我搜索今天新闻", "sessionId": "plain-1"} | query
    return SCRIPT.replace("ADDRESS", f"{prefix}/api/agent/stream?{urlencode(asked)}").replace("AT_DONE", close)


def giving(text, kind):
    """A handler that gives this."""

    async def handle(request):
        return web.Response(text=text, content_type=kind)

    return handle


def page_beside(agent, settings, **how):
    """The page as two routes more of our application, under our policy: its script is a file."""
    app = create_app([agent], settings)
    app.router.add_get("/plain", giving(HEAD + "<script src=/plain.js></script>", "text/html"))
    app.router.add_get("/plain.js", giving(script(**how), "text/javascript"))
    return app


def page_above(agent, settings, **how):
    """The page of an application in which ours is mounted: its script stands in the page."""
    app = web.Application()
    app.router.add_get(
        "/plain",
        giving(f"{HEAD}<script>{script('/ai', **how)}</script>", "text/html"),
    )
    setup(app, [agent], settings, prefix="/ai")
    return app


async def shows(page, last):
    """What the page has, once the last frame it was told is of this type."""
    await page.wait_for_function("last => window.shown.last === last", arg=last)
    return await page.evaluate("window.shown")


def runs(store):
    return store.list_runs(limit=10)


@pytest.mark.parametrize("place", [page_beside, page_above])
async def test_a_plain_page_works_as_it_is(browser, place):
    async with FakeProvider(tool_calls(("search", {"query": "新闻"})), text("今天没有新闻。", chunk=2)) as provider:
        address = {"openrouter": {"base_url": provider.base_url, "api_key": "sk-or-x"}}
        settings = Settings(providers=address, model={"default": "openrouter/another/one"})
        async with (
            Agent(tools=[search], settings=settings) as agent,
            listening(place(agent, settings, model=MODEL)) as here,
            visiting(browser, here, "/plain") as page,
        ):
            shown = await shows(page, "done")
        assert provider.requests[0].body["model"] == "anthropic/claude-sonnet-4"
        assert (shown["text"], shown["final"], shown["opened"]) == ("今天没有新闻。", "今天没有新闻。", 1)
        (asked, started), (told, result) = shown["tools"]
        assert (asked, started["tool"], started["arguments"]) == ("tool_call", "search", {"query": "新闻"})
        assert (told, result["call_id"], result["status"]) == ("tool_result", started["call_id"], "success")
        assert result["session_id"] == "plain-1"


async def test_a_connection_that_breaks_is_made_again_and_nothing_is_lost_doubled_or_begun(browser):
    model = Paused(
        ["one ", WAIT, "two ", WAIT, call("search", query="x")],
        ["three ", WAIT, "four"],
    )
    async with Agent(model=model, tools=[search]) as agent, listening(page_beside(agent, None, close="")) as here:
        async with visiting(browser, here, "/plain", excuse=LOST) as page:
            for cuts in range(3):
                await model.standing()
                await page.wait_for_function("n => window.shown.opened === n && window.shown.text", arg=cuts + 1)
                here.cut()
                model.go()
            shown = await shows(page, "closed")  # told by 204, for this page never closes its source itself
        assert shown["text"] == "one two three four"
        assert [kind for kind, _ in shown["tools"]] == ["tool_call", "tool_result"]
        assert (shown["final"], shown["opened"]) == ("three four", 4)
        assert len(await runs(agent.store)) == 1


async def test_a_run_that_fails_is_told_the_page_once(browser):
    async with Agent(model=Paused([RuntimeError("broken")])) as agent:
        async with listening(page_beside(agent, None)) as here, visiting(browser, here, "/plain") as page:
            shown = await shows(page, "error")
        assert "broken" in json.dumps(shown)
        assert len(await runs(agent.store)) == 1
