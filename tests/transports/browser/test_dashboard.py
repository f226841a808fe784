"""The dashboard in a real browser, with many runs in flight."""

import pytest
from playwright.async_api import expect

from tests.transports.browser.crowd import Crowd
from tests.transports.browser.visits import LOST, visiting
from tests.transports.served import served

pytestmark = pytest.mark.asyncio(loop_scope="session")

KINDS = {"model": 90, "tool": 60, "person": 50}


async def started(agent, kinds):
    """Runs of these kinds, all standing where they are to stand."""
    chains = [agent.start(kind) for kind, count in kinds.items() for _ in range(count)]
    stands = {"model": "awaiting_model", "tool": "executing_tools", "person": "suspended"}
    for chain, kind in zip(chains, [kind for kind, count in kinds.items() for _ in range(count)], strict=True):
        async for event in chain:
            if event.type == "state" and event.current == stands.get(kind):
                break
    return chains


async def test_a_picture(browser, tmp_path):
    crowd = Crowd()
    agent = crowd.agent()
    async with served(agent) as here:
        for _ in range(8):
            await here.ask("failing")
        await started(agent, KINDS)
        async with visiting(browser, here, "/dashboard") as page:
            await expect(page.get_by_test_id("in-flight")).to_have_text("200")
            await page.screenshot(path=tmp_path / "overview.png")
