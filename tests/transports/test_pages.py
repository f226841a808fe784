import hashlib
import json
import re
from pathlib import Path

import pytest
from aiohttp import web

from agentflow import Agent
from agentflow.testing import ScriptedModel
from agentflow.transports import pages, setup
from tests.transports.served import listening, served
from tests.transports.test_auth import made

STATIC = Path(pages.__file__).parent / "static"
VENDOR = STATIC / "vendor"
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


async def test_the_page_is_for_everybody_who_may_reach_the_server_and_runs_only_what_is_in_its_files():
    async with served() as here, here.get("/agent") as response:
        assert (response.status, response.content_type) == (200, "text/html")
        assert {name: value for name, value in policy_of(response).items() if name in CSP} == CSP
        html = await response.text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|https?://", html)


@pytest.mark.parametrize("prefix", ["", "/ai"])
async def test_all_that_the_page_names_is_there_below_any_prefix(prefix):
    async with Agent(model=ScriptedModel()) as agent:
        app = web.Application()
        setup(app, [agent], prefix=prefix or "/x")
        async with listening(app) as here:
            base = f"{prefix or '/x'}/"
            async with here.get(f"{base}agent") as response:
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
    keys = re.findall(r"^  '([\w.]+)': \[", source, re.MULTILINE)
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
