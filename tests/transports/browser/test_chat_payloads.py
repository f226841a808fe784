"""Texts of models, tools and people stay texts on the chat page: nothing of them runs, nothing foreign is asked for.

That no request goes elsewhere, no dialog opens and no policy is breached is looked at by every visit; see `visits`.
"""

from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import expect

from agentflow import Agent, Settings, tool
from agentflow.models.base import CallRequest, ModelChunk
from agentflow.testing import call
from agentflow.tools import ask_user
from tests.transports.browser.payloads import payloads
from tests.transports.browser.visits import LOST, say, visiting
from tests.transports.paused import Paused
from tests.transports.served import listening, served

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROUNDS = 12  # of one run, each with a payload of its own

# What of the page is not as it should be: in answers only what is allowed, elsewhere nothing that could come to life.
FOREIGN = """(given) => {
  const page = given ?? document;
  const found = window.__hit === undefined ? [] : [`ran: ${window.__hit}`];
  const allowed = new Set((
    'P BR STRONG EM DEL S U CODE PRE A UL OL LI BLOCKQUOTE HR H1 H2 H3 H4 H5 H6 TABLE THEAD TBODY TR TH TD DIV SPAN'
  ).split(' '));
  for (const element of page.querySelectorAll('[data-testid=answer] *')) {
    const own = element.closest('button');
    if (!own && !allowed.has(element.tagName.toUpperCase())) found.push(`in an answer: ${element.outerHTML}`);
    if (element.hasAttribute('style') || element.id || element.hasAttribute('name')) found.push(element.outerHTML);
  }
  const never = 'body script, body link, body meta, body style, iframe, img, object, embed, base, video, audio, math';
  for (const element of page.querySelectorAll(never)) found.push(`never: ${element.outerHTML}`);
  for (const element of page.querySelectorAll('*')) {
    for (const {name} of element.attributes) if (name.startsWith('on')) found.push(`handler: ${element.outerHTML}`);
  }
  for (const link of page.querySelectorAll('a[*|href]')) {
    if (!['http:', 'https:', 'mailto:'].includes(link.protocol)) found.push(`address: ${link.outerHTML}`);
  }
  return found;
}"""


OPEN_ALL = "for (const b of document.querySelectorAll('main [aria-expanded=false]')) b.click()"


class Canary:
    """A server of somebody else's; `asked` is who came."""

    def __init__(self):
        self.asked = []
        self.app = web.Application()
        self.app.router.add_route("*", "/{path:.*}", self._note)

    async def _note(self, request):
        self.asked.append(request.path)
        return web.Response(text="")


@pytest_asyncio.fixture(loop_scope="session")
async def texts():
    """The payloads, with the address of a server that hears of nobody."""
    canary = Canary()
    async with listening(canary.app) as there:
        yield payloads(there.base)
    assert canary.asked == []


@asynccontextmanager
async def serving(agent):
    """Its server; what the agent says comes at once."""
    settings = Settings(flow={"window_ms": 10}, server={"shutdown_grace": 0.2})
    async with served(agent, settings=settings) as here:
        yield here


async def assert_harmless(page):
    found = await page.evaluate(FOREIGN)
    assert not found, "\n".join(found)


# Writes each text in two pieces, cut at each place, and letter by letter; gives what was not harmless, or not the same.
CUT = f"""async (texts) => {{
  const {{ Markdown }} = await import('/static/shared/markdown.js');
  const wrong = [];
  const written = (pieces) => {{
    const place = document.createElement('div');
    place.dataset.testid = 'answer';
    document.body.replaceChildren(place);
    const markdown = new Markdown(place);
    let text = '';
    for (const piece of pieces) markdown.write(text += piece, true);
    markdown.write(text, false);
    wrong.push(...({FOREIGN})());
    return place.innerHTML;
  }};
  for (const text of texts) {{
    const whole = written([text]);
    const cuts = Array.from(text, (_, at) => [text.slice(0, at), text.slice(at)]);
    for (const pieces of [[...text], ...cuts]) {{
      if (written(pieces) !== whole) wrong.push(`not the same as ${{JSON.stringify(pieces)}}`);
    }}
  }}
  return wrong;
}}"""


@tool
async def echo(text: str):
    """Give it back."""
    yield {"done": 1, "total": 2, "message": text}
    yield text


@tool(approval=True)
def pay(note: str, more: dict[str, list[str]]) -> str:
    """Pay."""
    return note


def lots(texts):
    """The payloads in lots: a message with all of a lot, and the rounds that say, think, pass and get each of it."""
    for at in range(0, len(texts), ROUNDS):
        lot = texts[at : at + ROUNDS]
        rounds = [[ModelChunk(reasoning=text), *text, call("echo", text=text)] for text in lot]
        yield "\n".join(lot), [*rounds, ["That is all."]]


async def test_payloads_of_models_and_tools_run_nothing_live_and_after_a_reload(browser, texts):
    told = list(lots(texts))
    model = Paused(*[turn for _, rounds in told for turn in rounds])
    async with serving(Agent(model=model, tools=[echo])) as here, visiting(browser, here) as page:
        for number, (message, _) in enumerate(told):
            await say(page, message)
            await expect(page.get_by_test_id("closing-line")).to_have_count(number + 1)
            await expect(page.get_by_test_id("error")).to_have_count(0)
        rows = page.get_by_test_id("tool-row")
        await expect(rows).to_have_count(len(texts))
        await page.evaluate(OPEN_ALL)
        await assert_harmless(page)
        await page.reload()
        await expect(page.get_by_test_id("closing-line")).to_have_count(len(told))
        await page.evaluate(OPEN_ALL)
        await assert_harmless(page)


async def test_payloads_that_come_in_pieces_run_nothing_and_look_as_they_do_at_once(browser, texts):
    async with serving(Agent(model=Paused())) as here, visiting(browser, here) as page:
        found = await page.evaluate(CUT, texts)
        assert not found, "\n".join(found[:20])


async def test_payloads_as_titles_run_nothing(browser, texts):
    async with serving(Agent(model=Paused())) as here:
        for text in texts[-60:]:
            await here.ask(text)
        async with visiting(browser, here) as page:
            await expect(page.get_by_test_id("session-item").nth(40)).to_be_attached()
            await assert_harmless(page)


@pytest.mark.parametrize("how", ["live", "reloaded"])
async def test_payloads_in_what_waits_for_people_run_nothing(browser, texts, how):
    asked = [call("ask_user", question=text, options=[text, "no"]) for text in texts[::2]]
    wanted = [call("pay", note=text, more={text: [text]}) for text in texts[1::2]]
    agent = Agent(model=Paused([*asked, *wanted]), tools=[ask_user, pay])
    async with serving(agent) as here, visiting(browser, here, excuse=LOST) as page:
        await say(page, "go on")
        await expect(page.get_by_test_id("question")).to_have_count(len(asked))
        await expect(page.get_by_test_id("approval")).to_have_count(len(wanted))
        if how == "reloaded":
            await page.reload()
            await expect(page.get_by_test_id("approval")).to_have_count(len(wanted))
        await assert_harmless(page)


async def test_payloads_in_names_and_errors_run_nothing(browser, texts):
    @tool
    def fail(text: str) -> str:
        """Fail."""
        raise ValueError(text)

    unknown = [CallRequest(name=text, arguments=text) for text in texts]
    failing = [call("fail", text=text) for text in texts]
    turns = [unknown, failing, [RuntimeError("\n".join(texts))]]
    async with (
        serving(Agent(model=Paused(*turns), tools=[fail], max_tool_calls=1000)) as here,
        visiting(browser, here) as page,
    ):
        await say(page, "go on")
        await expect(page.get_by_test_id("error").last).to_be_visible()
        await page.evaluate(OPEN_ALL)
        await assert_harmless(page)
        await page.reload()
        await expect(page.get_by_test_id("error").last).to_be_visible()
        await assert_harmless(page)


async def test_on_a_page_that_trusts_tags_they_are_found(browser):
    trusting = f"""texts => texts.filter((text) => {{
      const body = `<div data-testid=answer>${{text}}</div>`;
      return !({FOREIGN})(new DOMParser().parseFromString(body, 'text/html')).length;
    }})"""
    tags = [text for text in payloads("data:,") if text.startswith("<") and not text.startswith("<javascript")]
    page = await browser.new_page()
    assert await page.evaluate(trusting, tags) == []
    await page.close()
