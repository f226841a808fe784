"""The scripts of the dashboard that need no browser, in node on what our own server tells."""

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from agentflow.transports import pages
from tests.transports.browser.crowd import Crowd
from tests.transports.served import Frames, served
from tests.transports.test_pages import logs

NODE = Path(__file__).parent.parent / "node"
DASHBOARD = Path(pages.__file__).parent / "static" / "dashboard"


async def fleet():
    """Two snapshots of a server whose runs stand in all places, and the events between them."""
    crowd = Crowd()
    agent = crowd.agent()
    async with served(agent) as here, here.get("/api/events") as response:
        frames = Frames(response)
        chains = [agent.start(kind) for kind in ("model", "tool", "person", "failing", "model", "person")]
        await chains[3]
        for chain in (chains[2], chains[5]):
            await agent_suspended(chain)
        _, before = await here.json("/api/operator/snapshot")
        chains += [agent.start(kind) for kind in ("tool", "failing", "person")]
        crowd.open.set()
        chains[5].cancel()
        for chain in (chains[0], chains[1], chains[4], chains[6], chains[7]):
            await chain
        await agent_suspended(chains[8])
        _, after = await here.json("/api/operator/snapshot")
        events = []
        while frames.last_id != after["position"]:
            event = await frames.next()
            events.append((int(frames.last_id.partition(":")[2]), event))
    counted = int(before["position"].partition(":")[2])
    return {"before": before, "after": after, "events": [event for number, event in events if number > counted]}


async def agent_suspended(chain):
    async for event in chain:
        if event.type == "state" and event.current == "suspended":
            return


async def test_the_scripts_that_need_no_browser_count_as_the_server_does(tmp_path):
    if shutil.which("node") is None:
        pytest.skip("needs node")
    told = tmp_path / "logs.json"
    runs = {name: log["events"] for name, log in (await logs()).items()}
    told.write_text(json.dumps({"fleet": await fleet(), "runs": runs}), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *("node", "--test", "--test-reporter=spec", str(NODE / "dashboard.test.mjs")),
        env={**os.environ, "LOGS": str(told)},  # noqa: TID251  node's own variables
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


def test_every_text_of_the_dashboard_is_there_in_both_languages_and_is_used():
    keys = re.findall(r"^  '([\w.]+)': \['.+', '.+'\],$", (DASHBOARD / "texts.js").read_text("utf-8"), re.MULTILINE)
    assert len(keys) == len(set(keys)) > 100
    scripts = "\n".join(path.read_text("utf-8") for path in DASHBOARD.glob("*.js") if path.name != "texts.js")
    computed = ("state.", "breaker.", "attention", "tools.window.", "legend.", "decision.")
    unused = [key for key in keys if f"'{key}'" not in scripts and not key.startswith(computed)]
    assert unused == []
