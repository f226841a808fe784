"""The dashboard in a real browser, with many runs in flight."""

import re
from collections import Counter

import pytest
from playwright.async_api import expect

from agentflow.transports.auth import new_key
from tests.transports.browser.crowd import Crowd
from tests.transports.browser.visits import LOST, visiting
from tests.transports.served import served

pytestmark = pytest.mark.asyncio(loop_scope="session")

KINDS = {"model": 90, "tool": 60, "person": 50}
STANDS = {"model": "awaiting_model", "tool": "executing_tools", "person": "suspended"}


async def started(agent, kinds=KINDS):
    """Runs of these kinds, all standing where they are to stand."""
    chains = [(kind, agent.start(kind)) for kind, count in kinds.items() for _ in range(count)]
    for kind, chain in chains:
        async for event in chain:
            if event.type == "state" and event.current == STANDS[kind]:
                break
    return [chain for _, chain in chains]


async def numbers(page):
    """What the page says now: runs by state, and calls and failures by tool."""
    tools = await page.get_by_test_id("tool").all()
    return {
        "states": {state: int(await page.get_by_test_id(f"state-{state}").inner_text()) for state in STANDS.values()},
        "tools": {
            await tool.get_attribute("data-tool"): (
                int(await tool.get_attribute("data-calls")),
                int(await tool.get_attribute("data-failed")),
            )
            for tool in tools
        },
    }


async def counted(here):
    """The same, as the server has counted it."""
    _, told = await here.json("/api/operator/snapshot")
    states = Counter(row["state"] for row in told["runs"])
    calls = Counter(row["tool"] for row in told["recent"]["tools"])
    failed = Counter(row["tool"] for row in told["recent"]["tools"] if row["status"] != "success")
    return {
        "states": {state: states[state] for state in STANDS.values()},
        "tools": {tool: (count, failed[tool]) for tool, count in calls.items()},
    }


async def test_the_numbers_under_200_live_runs_are_those_of_the_server(browser):
    crowd = Crowd()
    agent = crowd.agent()
    async with served(agent) as here, visiting(browser, here, "/dashboard") as page:
        await expect(page.get_by_test_id("no-runs")).to_be_visible()
        chains = await started(agent)
        for _ in range(8):
            await here.ask("failing")
        await expect(page.get_by_test_id("in-flight")).to_have_text("200")
        now = await numbers(page)
        assert now["states"] == {"awaiting_model": 90, "executing_tools": 60, "suspended": 50}
        crowd.open.set()
        for chain in chains[:150]:
            await chain
        await expect(page.get_by_test_id("in-flight")).to_have_text("50")
        assert await numbers(page) == await counted(here)
        await page.reload()
        await expect(page.get_by_test_id("in-flight")).to_have_text("50")
        assert await numbers(page) == await counted(here)


async def test_a_cut_is_told_with_its_time_and_what_was_missed_as_a_gap_after_which_totals_are_right(browser, tmp_path):
    crowd = Crowd()
    agent = crowd.agent()
    async with served(agent) as here, visiting(browser, here, "/dashboard", excuse=LOST) as page:
        chains = await started(agent, {"model": 20, "person": 10})
        await expect(page.get_by_test_id("in-flight")).to_have_text("30")
        here.cut()
        crowd.open.set()
        for chain in chains[:20]:
            await chain
        await expect(page.get_by_test_id("cut")).to_contain_text("Not connected. Values are from")
        await page.screenshot(path=tmp_path / "cut.png")
        strip = page.get_by_test_id("gap")
        await expect(strip).to_contain_text(re.compile(r"\d+ events missed from .* Totals are right"))
        await expect(page.get_by_test_id("in-flight")).to_have_text("10")
        await expect(page.get_by_test_id("cut")).to_be_hidden()
        assert await numbers(page) == await counted(here)
        await page.screenshot(path=tmp_path / "gap.png")
        await strip.get_by_role("button").click()
        await expect(strip).to_have_count(0)


async def test_what_was_missed_is_counted_once_however_often_the_line_breaks(browser):
    crowd = Crowd()
    agent = crowd.agent()
    async with served(agent) as here, visiting(browser, here, "/dashboard", excuse=LOST) as page:
        await here.ask("plain")
        await expect(page.get_by_test_id("in-flight")).to_have_text("0")
        start = here.server.firehose.position
        strip = page.get_by_test_id("gap")
        for _ in range(2):
            here.cut()
            await agent.start("plain")
            missed = int(here.server.firehose.position.split(":")[1]) - int(start.split(":")[1])
            await expect(page.get_by_test_id("cut")).to_be_visible()
            await expect(strip).to_contain_text(f"{missed} events missed")
            await expect(page.get_by_test_id("cut")).to_be_hidden()
        assert await numbers(page) == await counted(here)


async def test_of_many_runs_few_are_in_the_page_and_they_are_found_by_state_by_text_and_by_key(browser):
    crowd = Crowd()
    agent = crowd.agent()
    async with served(agent) as here, visiting(browser, here, "/dashboard") as page:
        chains = await started(agent)
        await expect(page.get_by_test_id("in-flight")).to_have_text("200")
        assert await page.get_by_test_id("run").count() < 60
        await page.get_by_role("button", name="waiting for a person").click()
        await expect(page.get_by_test_id("run")).to_have_count(50)
        await page.get_by_role("button", name="waiting for a person").click()
        await page.keyboard.press("/")
        await page.get_by_test_id("filter").last.fill(chains[-1].run_id)
        rows = page.get_by_test_id("run").filter(visible=True)
        await expect(rows).to_have_count(1)
        await page.keyboard.press("Escape")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.get_by_test_id("run-view")).to_contain_text(chains[-1].run_id[:13])
        await page.keyboard.press("Escape")
        await expect(page.get_by_test_id("overview")).to_be_visible()


async def test_a_pause_holds_the_numbers_and_the_count_goes_on(browser):
    crowd = Crowd()
    agent = crowd.agent()
    async with served(agent) as here, visiting(browser, here, "/dashboard") as page:
        await started(agent, {"model": 2})
        await expect(page.get_by_test_id("in-flight")).to_have_text("2")
        await page.keyboard.press(" ")
        await expect(page.get_by_test_id("live")).to_contain_text("Paused")
        chains = await started(agent, {"tool": 3})
        chains[0].cancel()
        await expect(page.get_by_test_id("in-flight")).to_have_text("2")
        await page.keyboard.press(" ")
        await expect(page.get_by_test_id("in-flight")).to_have_text("4")


async def test_tools_are_sorted_by_their_heads_and_a_chart_is_a_table_too(browser):
    crowd = Crowd()
    agent = crowd.agent()
    async with served(agent) as here:
        await here.ask("failing")
        await started(agent, {"tool": 3})
        async with visiting(browser, here, "/dashboard") as page:
            names = page.get_by_test_id("tools").locator("tbody th")
            await expect(names).to_have_text(["carrier_track", "stock_search"])
            await page.get_by_role("button", name="In flight").click()
            await expect(names).to_have_text(["stock_search", "carrier_track"])
            await expect(page.get_by_role("columnheader", name="In flight")).to_have_attribute(
                "aria-sort", "descending"
            )
            chart = page.get_by_test_id("chart-flying")
            await expect(chart.get_by_role("img")).to_have_attribute("aria-label", re.compile("running tools 3"))
            await chart.hover()
            await chart.get_by_role("button", name="Show as table").click()
            await expect(chart.get_by_role("row").nth(1)).to_contain_text("3")
            await expect(chart.get_by_role("img")).to_be_hidden()


async def test_a_run_is_seen_step_by_step_and_is_cancelled_after_one_question(browser):
    crowd = Crowd()
    agent = crowd.agent()
    async with served(agent) as here:
        (chain,) = await started(agent, {"tool": 1})
        async with visiting(browser, here, f"/dashboard#/run/{chain.run_id}") as page:
            await expect(page.get_by_test_id("run-state")).to_have_text("running tools")
            grid = page.get_by_role("treegrid")
            await expect(grid.get_by_role("row")).to_have_count(4)  # the run, its round, the model, the tool
            await grid.get_by_text("stock_search").click()
            await expect(page.get_by_test_id("inspector")).to_contain_text("tool_start")
            await page.get_by_test_id("cancel-run").click()
            await page.get_by_test_id("cancel.no").click()
            await expect(page.get_by_test_id("run-state")).to_have_text("running tools")
            await page.get_by_test_id("cancel-run").click()
            await page.get_by_test_id("cancel.yes").click()
            await expect(page.get_by_test_id("run-state")).to_have_text("cancelled")
            await expect(page.get_by_test_id("cancel-run")).to_be_hidden()
        assert (await here.json(f"/api/runs/{chain.run_id}"))[1]["state"] == "cancelled"


async def test_a_run_that_is_not_there_is_told(browser):
    async with served() as here, visiting(browser, here, "/dashboard#/run/nowhere", excuse="404") as page:
        fault = page.get_by_test_id("run-view").get_by_role("alert")
        await expect(fault).to_contain_text("does not exist or is no longer kept")


async def test_the_page_asks_for_a_key_of_an_operator(browser):
    keys, secrets = {}, {}
    for name, scopes in (("user", ("user",)), ("operator", ("user", "operator"))):
        key_id, secrets[name], hashed = new_key()
        keys[key_id] = {"hash": hashed, "user": name, "scopes": scopes}
    async with (
        served(keys=keys) as here,
        visiting(browser, here, "/dashboard", locale="zh-CN", excuse="40[13]") as page,
    ):
        form = page.get_by_test_id("key-form")
        for name in ("user", "operator"):
            await form.locator("input").fill(secrets[name])
            await form.get_by_role("button").click()
            if name == "user":
                await expect(form).to_contain_text("需要 operator 权限的密钥。")
        await expect(page.get_by_test_id("no-runs")).to_contain_text("还没有运行")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "phone"])
async def test_nothing_lies_outside_the_page(browser, tmp_path, scheme, size):
    crowd = Crowd()
    agent = crowd.agent()
    async with served(agent) as here:
        for _ in range(8):
            await here.ask("failing")
        (chain, *_) = await started(agent, {"person": 9, "tool": 12, "model": 20})
        async with visiting(browser, here, "/dashboard", color_scheme=scheme, size=size) as page:
            await expect(page.get_by_test_id("in-flight")).to_have_text("41")
            await page.screenshot(path=tmp_path / f"overview-{size}-{scheme}.png")
            assert await page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
            await page.goto(f"/dashboard#/run/{chain.run_id}")
            await expect(page.get_by_test_id("step")).to_have_count(3)
            await page.screenshot(path=tmp_path / f"run-{size}-{scheme}.png")
            assert await page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
