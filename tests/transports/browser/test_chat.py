"""The chat page in a real browser: question and answer, reload, stop, sessions, edit, queue, failures, lost lines."""

import asyncio
import json

import pytest
from aiohttp import web
from playwright.async_api import expect

from agentflow import Agent, tool
from agentflow.events import encode
from agentflow.testing import call
from agentflow.transports import setup
from tests.transports.browser.visits import LOST, answer, say, visiting
from tests.transports.paused import WAIT, Paused
from tests.transports.served import listening, served

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Counting:
    """A tool that tells how far it is, and stands still in between."""

    def __init__(self):
        self.may_end = asyncio.Event()

        @tool
        async def count(to: int):
            """Count."""
            yield {"done": 1, "total": to, "message": "one"}
            await self.may_end.wait()
            yield {"done": to, "total": to}

        self.tool = count


async def log_of(here):
    """The events of the one run there is."""
    (run,) = await here.server.store.list_runs(limit=10)
    return [json.loads(encode(event)) for event in await here.server.store.read(run.run_id, 0, 10_000)]


async def ended(here):
    """The last event of the one run there is, once it is there."""
    (run,) = await here.server.store.list_runs(limit=10)
    reader = here.server.reader(run.run_id)
    last = None
    while events := await reader.page():
        last = events[-1]
    return last


async def test_a_text_grows_and_the_card_of_a_tool_completes(browser):
    model, counting = Paused(["I **count**. ", WAIT, call("count", to=3)], ["There are ", WAIT, "three."]), Counting()
    async with served(Agent(model=model, tools=[counting.tool])) as here, visiting(browser, here) as page:
        await say(page, "How many?")
        await expect(page.get_by_test_id("message-user")).to_have_text("How many?")
        await expect(answer(page)).to_have_text("I count.")
        await expect(answer(page).locator("strong")).to_have_text("count")
        await expect(page.get_by_test_id("stop")).to_be_visible()
        model.go()
        row = page.get_by_test_id("tool-row")
        await expect(row).to_have_attribute("data-state", "running")
        await expect(row).to_have_attribute("data-tool", "count")
        await expect(page.get_by_test_id("status")).to_contain_text("Running tools")
        await expect(page.get_by_role("progressbar")).to_be_visible()
        counting.may_end.set()
        await expect(row).to_have_attribute("data-state", "done")
        await expect(answer(page)).to_have_text("There are")
        await expect(page.get_by_test_id("status")).to_contain_text("Writing")
        await expect(page.get_by_test_id("closing-line")).to_have_count(0)
        model.go()
        await expect(answer(page)).to_have_text("There are three.")
        await expect(page.get_by_test_id("closing-line")).to_be_visible()
        await expect(page.get_by_test_id("status")).to_contain_text("Ready")
        await expect(page.get_by_test_id("send")).to_be_visible()


async def test_an_answer_is_whole_after_reloads_in_its_middle(browser):
    model = Paused(["one ", WAIT, "two ", WAIT, "three"])
    async with served(Agent(model=model)) as here, visiting(browser, here, excuse=LOST) as page:
        await say(page, "Count.")
        for so_far in ("one", "one two"):
            await expect(answer(page)).to_have_text(so_far)
            await page.reload()
            await expect(answer(page)).to_have_text(so_far)
            await expect(page.get_by_test_id("message-user")).to_have_text("Count.")
            model.go()
        await expect(page.get_by_test_id("closing-line")).to_be_visible()
        for _ in range(2):
            await expect(answer(page)).to_have_text((await log_of(here))[-1]["text"])
            await expect(page.get_by_test_id("message-agent")).to_have_count(1)
            await expect(page.get_by_test_id("message-user")).to_have_count(1)
            await page.reload()


async def test_a_connection_that_breaks_loses_nothing_and_doubles_nothing(browser):
    model = Paused(["one ", WAIT, "two ", WAIT, "three"])
    async with served(Agent(model=model)) as here, visiting(browser, here, excuse=LOST) as page:
        await say(page, "Count.")
        for so_far in ("one", "one two"):
            await expect(answer(page)).to_have_text(so_far)
            here.cut()
            model.go()
        await expect(answer(page)).to_have_text("one two three")
        await expect(page.get_by_test_id("closing-line")).to_be_visible()
        assert (await log_of(here))[-1]["text"] == "one two three"


async def test_who_is_offline_is_told_and_goes_on_when_the_line_is_back(browser):
    model = Paused(["one ", WAIT, "two"])
    async with served(Agent(model=model)) as here, visiting(browser, here, excuse=LOST) as page:
        status = page.get_by_test_id("status")
        await say(page, "Count.")
        await expect(answer(page)).to_have_text("one")
        await page.context.set_offline(True)
        here.cut()
        await expect(status).to_contain_text("Connection lost")
        await expect(status).to_contain_text("Trying again in")
        await expect(answer(page)).to_have_text("one")
        model.go()
        await page.context.set_offline(False)
        await expect(answer(page)).to_have_text("one two")
        await expect(status).to_contain_text("Ready")
        assert len(await here.server.store.list_runs(limit=10)) == 1


async def test_a_message_that_did_not_get_there_is_kept_and_sent_once(browser):
    model = Paused(["Here."])
    async with served(Agent(model=model)) as here, visiting(browser, here, excuse=LOST) as page:
        await page.context.set_offline(True)
        await say(page, "Are you there?")
        await expect(page.get_by_text("Not sent, you are offline.")).to_be_visible()
        await expect(page.get_by_test_id("message-user")).to_have_text("Are you there?")
        await page.context.set_offline(False)
        await page.get_by_role("button", name="Send again", exact=True).click()
        await expect(answer(page)).to_have_text("Here.")
        await expect(page.get_by_text("Not sent")).to_be_hidden()
        assert len(model.requests) == 1


async def test_the_page_works_below_a_path_of_another_application(browser):
    async with Agent(model=Paused(["Below."])) as agent:
        app = web.Application()
        setup(app, [agent], prefix="/ai")
        async with listening(app) as here, visiting(browser, here, "/ai/agent") as page:
            await say(page, "Where are you?")
            await expect(answer(page)).to_have_text("Below.")


async def test_stop_stops_the_run_and_keeps_the_text(browser):
    model = Paused(["So far ", WAIT, "never"])
    async with served(Agent(model=model)) as here, visiting(browser, here) as page:
        await say(page, "Talk.")
        await expect(answer(page)).to_have_text("So far")
        await page.get_by_test_id("stop").click()
        await expect(page.get_by_text("Stopped by you").first).to_be_visible()
        await expect(answer(page)).to_have_text("So far")
        await expect(page.get_by_test_id("send")).to_be_visible()
        end = await ended(here)
        assert (end.type, end.reason) == ("cancelled", "user")


async def test_sessions_are_listed_kept_and_left_for_a_new_one(browser):
    model = Paused(["Green."], ["Blue."], ["Green again."])
    async with served(Agent(model=model)) as here, visiting(browser, here) as page:
        for word, said in (("tea", "Green."), ("sky", "Blue.")):
            await page.get_by_test_id("new-chat").click()
            await say(page, f"About {word}")
            await expect(answer(page)).to_have_text(said)
            await expect(page.get_by_test_id("closing-line")).to_be_visible()
        items = page.get_by_test_id("session-item")
        await expect(items).to_have_count(2)
        await page.reload()
        await expect(answer(page)).to_have_text("Blue.")
        await expect(items).to_have_count(2)
        await items.filter(has_text="About tea").click()
        await expect(answer(page)).to_have_text("Green.")
        await say(page, "And now?")
        await expect(answer(page)).to_have_text("Green again.")
        assert len(await here.server.store.list_sessions(None)) == 2
        assert [message.text for message in model.requests[-1].messages if message.role == "user"] == [
            "About tea",
            "And now?",
        ]


async def test_a_message_can_be_edited_and_sent_again(browser):
    async with served(Agent(model=Paused(["One."], ["Two."]))) as here, visiting(browser, here) as page:
        await say(page, "Say on.")
        await expect(answer(page)).to_have_text("One.")
        await page.get_by_test_id("message-user").hover()
        await page.get_by_test_id("edit").click()
        await expect(page.get_by_test_id("composer")).to_have_value("Say on.")
        await say(page, "Say two.")
        await expect(answer(page)).to_have_text("Two.")


async def test_what_is_sent_during_a_run_is_queued_and_sent_after_it(browser):
    model = Paused(["One ", WAIT, "done."], ["Two done."])
    async with served(Agent(model=model)) as here, visiting(browser, here) as page:
        await say(page, "first")
        await expect(answer(page)).to_have_text("One")
        await say(page, "second")
        await expect(page.get_by_text("Queued")).to_be_visible()
        assert len(model.requests) == 1
        model.go()
        await expect(answer(page)).to_have_text("Two done.")
        await expect(page.get_by_test_id("answer").first).to_have_text("One done.")
        await expect(page.get_by_text("Queued")).to_have_count(0)


async def test_a_failure_says_why_and_can_be_tried_again(browser):
    model = Paused([RuntimeError("out of tea")], ["Better."])
    async with served(Agent(model=model)) as here, visiting(browser, here) as page:
        await say(page, "Tea?")
        await expect(page.get_by_test_id("error")).to_be_visible()
        await expect(page.get_by_role("alert")).to_be_visible()
        await expect(page.get_by_test_id("status")).to_contain_text("Failed")
        await page.get_by_test_id("retry").last.click()
        await expect(answer(page)).to_have_text("Better.")
