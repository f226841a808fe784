"""What people decide on the chat page, in a real browser: approve, reject, other arguments, answers."""

from contextlib import asynccontextmanager

import pytest
from playwright.async_api import expect

from agentflow import Agent, tool
from agentflow.testing import call
from agentflow.tools import ask_user
from tests.transports.browser.visits import LOST, answer, say, visiting
from tests.transports.paused import Paused
from tests.transports.served import served

pytestmark = pytest.mark.asyncio(loop_scope="session")


CLICK_AT_ONCE = """new MutationObserver(() => {
  const approve = document.querySelector('[data-testid=approve]');
  if (approve && !window.clicked) {
    window.clicked = true;
    approve.click();
  }
}).observe(document.body, {childList: true, subtree: true})"""


class Till:
    """A tool that pays once it may; `paid` is what was paid."""

    def __init__(self):
        self.paid = []

        @tool(approval=True)
        def pay(amount: int, to: str = "shop") -> str:
            """Pay."""
            self.paid.append((amount, to))
            return f"paid {amount} to {to}"

        self.tool = pay


def paying(till):
    return Agent(model=Paused([call("pay", amount=30, to="Lin")], ["As you wish."]), tools=[till.tool])


async def card(page, kind="approval"):
    """The card, from when a click on it is no slip: half a second after it appeared."""
    found = page.get_by_test_id(kind)
    await expect(found).to_be_visible()
    await page.clock.fast_forward(600)
    return found


@asynccontextmanager
async def deciding(browser, agent, **how):
    """The page of this agent, whose time is moved on."""
    async with served(agent) as here, visiting(browser, here, "about:blank", **how) as page:
        await page.clock.install()
        await page.goto("/agent")
        yield page


async def test_a_call_runs_when_it_is_approved_with_the_arguments_that_were_shown(browser):
    till = Till()
    async with deciding(browser, paying(till)) as page:
        await say(page, "Pay Lin.")
        approval = await card(page)
        await expect(approval).to_contain_text("pay")
        await expect(page.get_by_test_id("status")).to_contain_text("Waiting for you")
        await expect(page.get_by_test_id("tool-row")).to_have_attribute("data-state", "waiting")
        await expect(page.get_by_test_id("composer")).to_be_disabled()
        assert till.paid == []
        await approval.get_by_test_id("approve").click()
        await expect(answer(page)).to_have_text("As you wish.")
        await expect(page.get_by_test_id("tool-row")).to_have_attribute("data-state", "done")
        await expect(page.get_by_text("approved by you").first).to_be_visible()
        assert till.paid == [(30, "Lin")]


async def test_a_click_at_the_moment_the_card_appears_is_a_slip(browser):
    till = Till()
    async with deciding(browser, paying(till)) as page:
        await page.evaluate(CLICK_AT_ONCE)
        await say(page, "Pay Lin.")
        approval = await card(page)
        assert await page.evaluate("window.clicked")
        await approval.get_by_test_id("reject").click()
        await expect(approval.get_by_test_id("reject")).to_be_enabled()
        assert till.paid == []


async def test_a_call_that_is_rejected_does_not_run_and_the_reason_is_told(browser):
    till = Till()
    async with deciding(browser, paying(till)) as page:
        await say(page, "Pay Lin.")
        approval = await card(page)
        await approval.get_by_test_id("reject").click()
        await approval.get_by_role("textbox").last.fill("too much")
        await approval.get_by_test_id("reject").click()
        await expect(page.get_by_test_id("answer").filter(has_text="As you wish.")).to_be_visible()
        assert till.paid == []


async def test_other_arguments_can_be_given_and_are_checked(browser):
    till = Till()
    async with deciding(browser, paying(till)) as page:
        await say(page, "Pay Lin.")
        approval = await card(page)
        amount = approval.get_by_label("amount")
        await amount.fill("x1")
        await expect(approval.get_by_test_id("amend")).to_be_disabled()
        await amount.fill("20")
        await expect(approval).to_contain_text("was 30")
        await approval.get_by_test_id("amend").click()
        await expect(answer(page)).to_have_text("As you wish.")
        assert till.paid == [(20, "Lin")]


async def test_a_call_is_approved_by_keys_only_from_within_its_card(browser):
    till = Till()
    async with deciding(browser, paying(till)) as page:
        await say(page, "Pay Lin.")
        approval = await card(page)
        await page.locator("body").press("Control+Enter")
        await approval.get_by_label("amount").focus()
        assert till.paid == []
        await page.keyboard.press("Control+Enter")
        await expect(answer(page)).to_have_text("As you wish.")
        assert till.paid == [(30, "Lin")]


async def test_what_waits_is_there_after_a_reload(browser):
    till = Till()
    async with deciding(browser, paying(till), excuse=LOST) as page:
        await say(page, "Pay Lin.")
        await card(page)
        await page.reload()
        await expect(page.get_by_test_id("session-item")).to_contain_text("Pay Lin.")
        await expect(page.get_by_test_id("session-item")).to_contain_text("needs you")
        approval = await card(page)
        await approval.get_by_test_id("approve").click()
        await expect(answer(page)).to_have_text("As you wish.")
        assert till.paid == [(30, "Lin")]


@pytest.mark.parametrize("how", ["option", "composer", "digit"])
async def test_a_question_is_answered(browser, how):
    model = Paused([call("ask_user", question="Which colour?", options=["blue", "red"])], ["Noted."])
    async with deciding(browser, Agent(model=model, tools=[ask_user])) as page:
        await say(page, "Paint it.")
        question = await card(page, "question")
        await expect(question).to_contain_text("Which colour?")
        await expect(question.get_by_role("radiogroup")).to_be_visible()
        await expect(page.get_by_test_id("option")).to_have_count(2)
        if how == "composer":
            await say(page, "red")
        elif how == "option":
            await page.get_by_test_id("option").filter(has_text="red").click()
            await question.get_by_role("button").last.click()
        else:
            await question.get_by_role("radio").first.focus()
            await page.keyboard.press("2")
            await page.keyboard.press("Enter")
        await expect(answer(page)).to_have_text("Noted.")
        assert "red" in model.requests[-1].messages[-1].text
