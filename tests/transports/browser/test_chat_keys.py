"""The chat page by keyboard, read aloud, on a phone, in the dark, in Chinese, and with keys of the server."""

import pytest
from playwright.async_api import expect

from agentflow import Agent
from tests.transports.browser.visits import answer, say, visiting
from tests.transports.paused import WAIT, Paused
from tests.transports.served import served
from tests.transports.test_auth import made

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = "x" * 300 + "\n\n```\n" + "y" * 300 + "\n```\n\n" + "|a|" * 40 + "\n" + "|-|" * 40 + "\n" + "|long|" * 40


def talking(*turns):
    return Agent(model=Paused(*turns))


async def test_enter_sends_and_with_shift_it_breaks_the_line(browser):
    model = Paused(["Yes."])
    async with served(Agent(model=model)) as here, visiting(browser, here) as page:
        composer = page.get_by_test_id("composer")
        await composer.press_sequentially("one")
        await composer.press("Shift+Enter")
        await composer.press_sequentially("two")
        await composer.press("Enter")
        await expect(answer(page)).to_have_text("Yes.")
        await expect(composer).to_have_value("")
        assert model.requests[0].messages[-1].text == "one\ntwo"


async def test_enter_that_ends_a_composition_sends_nothing(browser):
    model = Paused(["Yes."])
    async with served(Agent(model=model)) as here, visiting(browser, here) as page:
        composer = page.get_by_test_id("composer")
        await composer.focus()
        client = await page.context.new_cdp_session(page)
        await client.send("Input.imeSetComposition", {"text": "ni hao", "selectionStart": 6, "selectionEnd": 6})
        composed = {"type": "keyDown", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229}
        await client.send("Input.dispatchKeyEvent", composed)
        await composer.evaluate(
            "e => e.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true}))"
        )
        await client.send("Input.insertText", {"text": "你好"})
        await expect(composer).to_have_value("你好")
        assert model.requests == []
        await composer.press("Enter")
        await expect(answer(page)).to_have_text("Yes.")
        assert model.requests[0].messages[-1].text == "你好"


async def test_escape_stops_and_up_edits_the_last_message(browser):
    async with served(talking(["So far ", WAIT])) as here, visiting(browser, here) as page:
        await say(page, "Talk.")
        await expect(answer(page)).to_have_text("So far")
        await page.keyboard.press("Escape")
        await expect(page.get_by_text("Stopped by you").first).to_be_visible()
        await page.get_by_test_id("composer").press("ArrowUp")
        await expect(page.get_by_test_id("composer")).to_have_value("Talk.")
        await page.keyboard.press("Escape")
        await page.keyboard.press("Control+Shift+KeyO")
        await expect(page.get_by_test_id("message-user")).to_have_count(0)
        await expect(page.get_by_test_id("composer")).to_be_focused()


async def test_readers_of_screens_are_told_once_what_is_what(browser):
    async with served(talking(["First.\n\nSecond."])) as here, visiting(browser, here) as page:
        await say(page, "Talk.")
        await expect(page.get_by_test_id("closing-line")).to_be_visible()
        await expect(page.get_by_role("log")).to_have_attribute("aria-live", "off")
        await expect(page.get_by_role("status").first).to_contain_text("Ready")
        await expect(page.get_by_test_id("composer")).to_have_role("textbox")
        await expect(page.get_by_test_id("composer")).to_have_accessible_name("Message")
        await expect(page.locator("[aria-live=polite]")).to_have_count(1)
        await expect(page.locator("[aria-live=assertive]")).to_have_count(1)
        nameless = "b => b.checkVisibility() && !(b.ariaLabel || b.textContent.trim())"
        nameless = await page.eval_on_selector_all("button", f"all => all.filter({nameless}).map(b => b.outerHTML)")
        assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_theme_is_the_systems_until_one_is_chosen(browser, scheme):
    def background(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    async with served() as here, visiting(browser, here, color_scheme=scheme) as page:
        colours = {"light": "rgb(246, 247, 248)", "dark": "rgb(12, 13, 15)"}
        assert await background(page) == colours[scheme]
        other = "dark" if scheme == "light" else "light"
        while await background(page) != colours[other]:
            await page.get_by_test_id("theme-toggle").click()
        await page.reload()
        assert await background(page) == colours[other]


@pytest.mark.parametrize("size", ["desk", "phone"])
async def test_nothing_makes_the_page_scroll_sideways(browser, size):
    async with served(talking([LONG])) as here, visiting(browser, here, size=size) as page:
        await say(page, "w" * 400)
        await expect(page.get_by_test_id("closing-line")).to_be_visible()
        width = await page.evaluate("document.scrollingElement.scrollWidth")
        assert width <= page.viewport_size["width"]
        box = await page.get_by_test_id("answer").bounding_box()
        assert box["x"] + box["width"] <= page.viewport_size["width"]


async def test_on_a_phone_the_sessions_are_a_drawer_and_buttons_are_large_enough(browser):
    async with served(talking(["Yes."])) as here, visiting(browser, here, size="phone", has_touch=True) as page:
        await say(page, "hello")
        await expect(answer(page)).to_have_text("Yes.")
        await expect(page.get_by_test_id("session-list")).not_to_be_in_viewport()
        send = await page.get_by_test_id("send").bounding_box()
        assert min(send["width"], send["height"]) >= 44


async def test_the_page_speaks_the_languages_of_its_readers(browser):
    async with served() as here, visiting(browser, here, locale="zh-CN") as page:
        await expect(page.get_by_test_id("status")).to_contain_text("就绪")
        await expect(page.locator("html")).to_have_attribute("lang", "zh")
        await page.get_by_test_id("language-toggle").click()
        await expect(page.get_by_test_id("status")).to_contain_text("Ready")
        await page.reload()
        await expect(page.get_by_test_id("status")).to_contain_text("Ready")


async def test_where_the_server_has_keys_one_is_asked_for_and_kept_for_the_tab(browser):
    key, settings = made("ann")
    refused = "status of 401"
    async with served(keys=settings) as here, visiting(browser, here, excuse=refused) as page:
        form = page.get_by_test_id("key-form")
        for given in ("wrong", key):
            await form.get_by_role("textbox").or_(form.locator("input")).first.fill(given)
            await page.keyboard.press("Enter")
            if given == "wrong":
                await expect(form).to_be_visible()
        await expect(form).to_have_count(0)
        await say(page, "hello")
        await expect(answer(page)).to_have_text("Hello there.")
        await page.reload()
        await expect(answer(page)).to_have_text("Hello there.")
        assert key not in await page.evaluate("Object.values(localStorage).join()")
