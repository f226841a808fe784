"""How the chat page treats who reads: what is folded, when it follows the end, what a link is, what moves."""

import pytest
from playwright.async_api import expect

from agentflow import Agent
from agentflow.errors import ModelConnectionError
from agentflow.models.base import ModelChunk
from agentflow.testing import call
from tests.transports.browser.test_chat import Counting
from tests.transports.browser.visits import answer, say, visiting
from tests.transports.paused import WAIT, Paused
from tests.transports.served import served

pytestmark = pytest.mark.asyncio(loop_scope="session")

LINES = "\n\n".join(f"Line {number}." for number in range(80))


async def test_thoughts_are_folded_until_somebody_opens_them(browser):
    model = Paused([ModelChunk(reasoning="It may be *tea*."), WAIT, "Tea."])
    async with served(Agent(model=model)) as here, visiting(browser, here) as page:
        await say(page, "What is it?")
        reasoning = page.get_by_test_id("reasoning")
        await expect(reasoning).to_contain_text("Thinking…")
        thought = reasoning.get_by_text("It may be *tea*.")
        await expect(thought).to_be_hidden()
        model.go()
        await expect(answer(page)).to_have_text("Tea.")
        await expect(reasoning).to_contain_text("Thought for")
        await reasoning.get_by_role("button").click()
        await expect(thought).to_be_visible()
        await expect(reasoning.get_by_role("button")).to_have_attribute("aria-expanded", "true")


async def test_the_text_of_an_attempt_that_is_made_again_stays_to_be_looked_at(browser):
    lost = ModelConnectionError("the connection is lost", provider="paused")
    model = Paused(["Wrong ", WAIT, lost], ["Right."])
    async with served(Agent(model=model)) as here, visiting(browser, here) as page:
        await say(page, "Which?")
        await expect(answer(page)).to_have_text("Wrong")
        model.go()
        await expect(answer(page)).to_have_text("Right.")
        await expect(page.get_by_test_id("answer")).to_have_count(1)
        replaced = page.get_by_test_id("replaced")
        await expect(replaced).to_contain_text("First attempt replaced")
        await expect(replaced.get_by_text("Wrong")).to_be_hidden()
        await replaced.get_by_role("button").click()
        await expect(replaced.get_by_text("Wrong")).to_be_visible()


async def test_it_follows_the_end_until_its_reader_goes_up_and_from_when_he_comes_back(browser):
    model = Paused([LINES, WAIT, "\n\nOne more.", WAIT, "\n\nThe last."])
    async with served(Agent(model=model)) as here, visiting(browser, here) as page:
        await say(page, "Tell me all.")
        jump = page.get_by_test_id("jump")
        await expect(answer(page).get_by_text("Line 79.")).to_be_in_viewport()
        await expect(jump).to_be_hidden()
        await answer(page).get_by_text("Line 79.").hover()
        await page.mouse.wheel(0, -600)
        await expect(jump).to_have_text("New text below")
        first = answer(page).get_by_text("Line 60.")
        before = await first.bounding_box()
        model.go()
        await expect(answer(page)).to_contain_text("One more.")
        assert await first.bounding_box() == before
        await jump.click()
        await expect(answer(page).get_by_text("One more.")).to_be_in_viewport()
        model.go()
        await expect(answer(page).get_by_text("The last.")).to_be_in_viewport()


async def test_links_leave_the_page_where_it_is_and_pictures_are_only_told(browser):
    said = "[a](https://a.example/a) <https://a.example/b> ![c](https://a.example/c.png) [d](/agent) [e](mailto:e@f)"
    async with served(Agent(model=Paused([said]))) as here, visiting(browser, here) as page:
        await say(page, "Links?")
        await expect(page.get_by_test_id("closing-line")).to_be_visible()
        links = answer(page).get_by_role("link")
        found = await links.evaluate_all("all => all.map(a => [a.textContent, a.href, a.target, a.rel])")
        outside = ["_blank", "noopener noreferrer nofollow"]
        assert found == [
            ["a", "https://a.example/a", *outside],
            ["https://a.example/b", "https://a.example/b", *outside],
            ["c", "https://a.example/c.png", *outside],
            ["e", "mailto:e@f", *outside],
        ]


async def test_nothing_turns_for_who_wants_nothing_to(browser):
    counting = Counting()
    model = Paused(*[[call("count", to=3)]] * 2)
    async with served(Agent(model=model, tools=[counting.tool])) as here:
        for motion, moves in (("no-preference", True), ("reduce", False)):
            async with visiting(browser, here, reduced_motion=motion) as page:
                await page.get_by_test_id("new-chat").click()
                await say(page, "Count.")
                await expect(page.get_by_test_id("tool-row")).to_have_attribute("data-state", "running")
                running = "document.getAnimations().filter(a => a.effect.getTiming().iterations === Infinity).length"
                assert bool(await page.evaluate(running)) is moves
        counting.may_end.set()
