"""One Chromium for all tests of a process, in one loop; each test has a context of its own."""

import os
import shutil

import pytest
import pytest_asyncio
from playwright.async_api import async_playwright

from agentflow.testing import LeakCheck

_FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser():
    """The system's Chromium, headless. Where there is none the tests are skipped, but not on CI."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        on_ci = os.environ.get("CI") == "true"  # noqa: TID251  a machine without a browser must not pass there
        (pytest.fail if on_ci else pytest.skip)("needs a browser: apt-get install chromium fonts-wqy-microhei")
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=chromium, headless=True, args=_FLAGS.split())
        yield running
        await running.close()


@pytest_asyncio.fixture(loop_scope="session")
async def leak_check(browser):
    """In the loop of the browser, whose own pipes are there before and after."""
    async with LeakCheck():
        yield
