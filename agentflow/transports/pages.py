"""The pages for browsers, and the files they are made of, as they stand in the package.

What a page does is in its scripts; they use the routes that every client does. A page asks for no key, since a browser
that goes to an address sends none: its script asks the person for one and sends it along.
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from agentflow.transports.refusals import Refused
from agentflow.transports.routes import Route

_ROOT = Path(__file__).parent / "static"
_TYPES: Mapping[str, str] = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".LICENSE": "text/plain",
}


@dataclass(frozen=True, slots=True)
class File:
    """A file as it is sent: `etag` is the hash of its bytes."""

    body: bytes
    content_type: str
    etag: str


@functools.cache
def files() -> Mapping[str, File]:
    """All files that are served, by their path below `static`. Read once: a name that is not among them is none."""
    return {
        path.relative_to(_ROOT).as_posix(): _file(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(_ROOT.rglob("*"))
        if path.suffix in _TYPES
    }


def _file(body: bytes, content_type: str) -> File:
    return File(body, content_type, hashlib.sha256(body).hexdigest()[:32])


async def chat_page(request: web.Request) -> web.Response:
    """`GET /agent`: the page on which people talk to the agents."""
    return _answer(request, "agent.html")


async def dashboard_page(request: web.Request) -> web.Response:
    """`GET /dashboard`: the page on which operators watch the runs."""
    return _answer(request, "dashboard.html")


async def static_file(request: web.Request) -> web.Response:
    """`GET /static/{name}`: a file of the pages."""
    name = request.match_info["name"]
    if name not in files() or name.endswith(".html"):  # a page's addresses are relative to where it is served
        raise Refused(404, "not_found", "there is no such file")
    return _answer(request, name)


def _answer(request: web.Request, name: str) -> web.Response:
    """The file, or 304 for a browser that has it. Each use asks whether it still is the same: names do not change."""
    file = files()[name]
    response = web.Response(status=304)
    if all(tag.value not in (file.etag, "*") for tag in request.if_none_match or ()):
        response = web.Response(body=file.body, content_type=file.content_type, charset="utf-8")
    response.etag = file.etag
    response.headers["Cache-Control"] = "no-cache"
    return response


ROUTES = (
    Route(
        method="GET",
        path="/agent",
        handler=chat_page,
        summary="The page on which people talk to the agents.",
        scope="open",
        answer="text/html",
    ),
    Route(
        method="GET",
        path="/dashboard",
        handler=dashboard_page,
        summary="The page on which operators watch the runs.",
        scope="open",
        answer="text/html",
    ),
    Route(
        method="GET",
        path="/static/{name:.+}",
        handler=static_file,
        summary="A file of the pages.",
        scope="open",
        answer="application/octet-stream",
    ),
)
