import asyncio
import base64
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from aiohttp import web

from agentflow import Agent, tool
from agentflow.errors import ModelConnectionError
from agentflow.models.base import ModelChunk
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ask_user
from agentflow.transports import pages, setup
from tests.transports.paused import WAIT, Paused
from tests.transports.served import Frames, listening, read, served
from tests.transports.test_auth import made

STATIC = Path(pages.__file__).parent / "static"
VENDOR = STATIC / "vendor"
NODE = Path(__file__).parent.parent / "node"
OWN = [path for path in STATIC.rglob("*") if path.is_file() and path.parent != VENDOR]
MAX_LINES = 400

CSP = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


def policy_of(response):
    parts = response.headers["Content-Security-Policy"].split("; ")
    return dict(part.split(" ", 1) for part in parts)


def referred(html):
    """The files that a page names."""
    return re.findall(r'(?:href|src)="([^"]+)"', html)


@pytest.mark.parametrize("page", ["/agent", "/dashboard"])
async def test_the_page_is_for_everybody_who_may_reach_the_server_and_runs_only_what_is_in_its_files(page):
    async with served() as here, here.get(page) as response:
        assert (response.status, response.content_type) == (200, "text/html")
        assert {name: value for name, value in policy_of(response).items() if name in CSP} == CSP
        html = await response.text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|https?://", html)


@pytest.mark.parametrize("page", ["agent", "dashboard"])
@pytest.mark.parametrize("prefix", ["", "/ai"])
async def test_all_that_the_page_names_is_there_below_any_prefix(prefix, page):
    async with Agent(model=ScriptedModel()) as agent:
        app = web.Application()
        setup(app, [agent], prefix=prefix or "/x")
        async with listening(app) as here:
            base = f"{prefix or '/x'}/"
            async with here.get(base + page) as response:
                names = referred(await response.text())
            assert len(names) > 3
            for name in names:
                assert name.startswith("static/")
                async with here.get(base + name) as response:
                    assert response.status == 200, name
                    assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_browser_that_has_a_file_is_told_so_and_asks_each_time():
    async with served() as here:
        for path in ("/agent", "/static/chat/main.js", "/static/shared/base.css"):
            async with here.get(path) as response:
                tag = response.headers["ETag"]
                assert response.headers["Cache-Control"] == "no-cache"
                assert await response.read()
            async with here.get(path, headers={"If-None-Match": tag}) as response:
                assert (response.status, await response.read()) == (304, b"")
                assert response.headers["ETag"] == tag
            async with here.get(path, headers={"If-None-Match": '"other"'}) as response:
                assert response.status == 200


@pytest.mark.parametrize(
    "name", ["", "x", "../pages.py", "%2e%2e/pages.py", "..%2fpages.py", "/etc/passwd", "agent.html", "vendor", "a\\b"]
)
async def test_nothing_but_the_files_of_the_pages_is_given(name):
    async with served() as here, here.get(f"/static/{name}", allow_redirects=False) as response:
        assert response.status == 404


async def test_the_page_needs_no_key_where_the_server_has_keys():
    async with served(keys=made("ann")[1]) as here:
        for path, status in (("/agent", 200), ("/static/chat/main.js", 200), ("/api/agents", 401)):
            async with here.get(path) as response:
                assert response.status == status


def test_what_is_not_our_own_is_named_with_its_licence_and_is_what_was_published():
    listed = json.loads((VENDOR / "vendor.json").read_text(encoding="utf-8"))
    for one in listed:
        assert hashlib.sha256((VENDOR / one["file"]).read_bytes()).hexdigest() == one["sha256"], one["name"]
        assert one["version"] and one["licence"]
        assert "ermission" in (VENDOR / one["licence_file"]).read_text(encoding="utf-8")
    named = {one[key] for one in listed for key in ("file", "licence_file")}
    assert {path.name for path in VENDOR.iterdir()} == named | {"vendor.json"}


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_a_file_of_the_pages_is_short_and_asks_nobody_else(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        assert len(text.splitlines()) <= MAX_LINES
        assert "innerHTML" not in text.replace("decoder.innerHTML = entity;", "")
        assert not re.search(r"\beval\(|new Function|insertAdjacentHTML|document\.write|outerHTML", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_every_text_is_there_in_both_languages_and_is_used():
    source = (STATIC / "shared" / "texts.js").read_text(encoding="utf-8")
    keys = re.findall(r"^  '?([\w.]+)'?: \[", source, re.MULTILINE)
    assert len(keys) == len(set(keys)) > 100
    scripts = "\n".join(
        path.read_text(encoding="utf-8") for path in OWN if path.suffix == ".js" and path.name != "texts.js"
    )
    computed = (
        "finish.",
        "status.",
        "call.",
        "ended.",
        "replaced",
        "type.",
        "not.",
        "is.",
        "note.",
        "tokens.",
        "today",
        "yesterday",
    )
    unused = [
        key
        for key in keys
        if f"'{key}'" not in scripts
        and not key.startswith(computed)
        and not (key.endswith(".one") and f"'{key.removesuffix('.one')}'" in scripts)
        and key not in ("earlier", "approval.said", "question.said")
    ]
    assert unused == []


# -- what needs no browser: the fold of events and the reader of frames, in node on logs of ours -------------------


class Shaky:
    """A tool that fails once, one that always does, and one that pays."""

    def __init__(self):
        self.tries = 0

    @tool(retries=1, idempotent=True)
    async def count(self, to: int):
        """Count."""
        self.tries += 1
        yield {"done": 1, "total": to, "message": "half"}
        if self.tries == 1:
            raise ConnectionError("not yet")
        yield "two"

    @tool
    def fail(self, why: str) -> str:
        """Fail."""
        raise ValueError(why)

    @tool(approval=True)
    def pay(self, amount: int) -> str:
        """Pay."""
        return f"paid {amount}"


async def recorded(agent, text, meanwhile=None):
    """A run as it was sent and as the server sees it; `meanwhile` gets the server and each event as it comes.

    It is followed to its end, or until `meanwhile` says that this is enough.
    """
    async with served(agent) as here:
        async with here.post("/api/agent/stream", {"input": text, "session_id": "s"}) as response:
            frames = Frames(response)
            while (event := await frames.next()) is not None:
                if meanwhile is not None and await meanwhile(here, event):
                    break
        run_id = frames.last_id.partition(":")[0]
        view = (await here.json(f"/api/runs/{run_id}"))[1]
        turns = (await here.json("/api/sessions/s"))[1]["turns"]
        async with here.get(f"/api/runs/{run_id}/events?after=0") as response:
            stream = b""
            while len(read(stream.decode("utf-8", "replace"))) < view["seq"]:
                stream += await response.content.readany()
    events = [data for _, data in read(stream.decode())]
    sent = base64.b64encode(stream).decode()
    return {"stream": sent, "events": events, "view": view, "turn": turns[0] if turns else None}


async def amend(here, event):
    if event["type"] == "approval":
        body = {"call_id": event["call_id"], "arguments": {"amount": 20}}
        assert (await here.posted(f"/api/runs/{event['run_id']}/amend", body))[0] == 202


async def stop(here, event):
    if event["type"] == "delta":
        assert (await here.posted(f"/api/runs/{event['run_id']}/cancel", {}))[0] == 202


async def leave_when_suspended(here, event):
    return event["type"] == "state" and event["current"] == "suspended"


def shaky(*turns):
    return Agent(model=Paused(*turns), tools=[Shaky(), ask_user])


def above():
    child = Agent(name="below", description="Finds.", model=Paused(["Found it."]))
    return Agent(model=Paused([call("below", input="Look.")], ["It was found."]), tools=[child.as_tool()])


async def logs():
    """The logs that node gets, each with what it is there for."""
    calls = [call("count", to=2), call("fail", why="中文 \u2028 and \n\n a frame")]
    broken = ModelConnectionError("connection lost", provider="paused")
    return {
        "tools": await recorded(shaky([ModelChunk(reasoning="Hm."), "I look. ", *calls], ["Two 对."]), "Count."),
        "replaced": await recorded(shaky(["Half of ", broken], ["The whole."]), "Tell."),
        "changed": await recorded(shaky([call("pay", amount=30)], ["Paid."]), "Pay.", amend),
        "asked": await recorded(shaky([call("ask_user", question="Which?", options=["a"])]), "?", leave_when_suspended),
        "below": await recorded(above(), "Ask below."),
        "stopped": await recorded(shaky(["So far ", WAIT, "never"]), "Talk.", stop),
        "failed": await recorded(shaky([RuntimeError("out of tea")]), "Tea?"),
    }


async def test_the_scripts_that_need_no_browser_read_our_logs(tmp_path):
    if shutil.which("node") is None:
        pytest.skip("needs node")
    told = tmp_path / "logs.json"
    told.write_text(json.dumps(await logs()), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *("node", "--test", "--test-reporter=spec", str(NODE / "pages.test.mjs")),
        env={**os.environ, "LOGS": str(told)},  # noqa: TID251  node's own variables
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
