"""What a route is: one line of a table, from which the application and its description are made.

To add routes, write handlers in a module of their own, list them there as `ROUTES`, and name the module in `app`. A
handler finds the shared objects as `request.app[SERVER]` and who asks as `request[CALLER]`; it reads what was sent by
`read_body` and `read_query` with the models it names here, and refuses by raising `Refused`.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias

from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from agentflow.transports.auth import CALLER, Scope, authenticate, check_site
from agentflow.transports.server import SERVER

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PATTERN = re.compile(r":[^}]*}")  # what a name in a path has to look like, which a description does not say
_REF = "#/components/schemas/{model}"
_ERROR: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["kind", "message"],
            "properties": {"kind": {"type": "string"}, "message": {"type": "string"}},
        }
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route. `answer` is the type of what it gives; `scope` who may use it, "open" being everybody.

    `body` and `query` are the models that its handler reads, in which every field of the query and of the body stands.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    scope: Scope = "user"
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    answer: str = "application/json"


def add(app: web.Application, route: Route) -> None:
    """Let the application have the route, for whom its scope lets in."""

    @wraps(route.handler)
    async def handle(request: web.Request) -> web.StreamResponse:
        server = request.app[SERVER]
        if route.scope != "open":
            check_site(request, server.settings.server)
            request[CALLER] = authenticate(request, server.keys, server.tickets, route.scope)
            if server.quotas is not None:
                async with server.quotas.request(request[CALLER]):
                    return await route.handler(request)
        return await route.handler(request)

    app.router.add_route(route.method, route.path, handle)


def describe(routes: tuple[Route, ...], version: str) -> dict[str, Any]:
    """The routes as an OpenAPI 3.1 document."""
    models = sorted(
        {model for route in routes for model in (route.body, route.query) if model}, key=lambda m: m.__name__
    )
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    definitions: dict[str, Any] = schemas.get("$defs", {})
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(_PATTERN.sub("}", route.path), {})[route.method.lower()] = _operation(route, definitions)
    return {
        "openapi": "3.1.0",
        "info": {"title": "agentflow", "version": version},
        "paths": paths,
        "components": {
            "schemas": definitions | {"Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, definitions: Mapping[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _path_names(route.path)
        ],
        "responses": {
            "200": {"description": "As asked.", "content": {route.answer: {}}},
            "default": {
                "description": "It says why not.",
                "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}},
            },
        },
        "security": [] if route.scope == "open" else [{"key": []}],
    }
    if route.query is not None:
        schema = definitions[route.query.__name__]
        operation["parameters"] += [
            {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": its}
            for name, its in schema.get("properties", {}).items()
        ]
    if route.body is not None:
        content = {"application/json": {"schema": {"$ref": _REF.format(model=route.body.__name__)}}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _path_names(path: str) -> list[str]:
    return [part.partition("}")[0].partition(":")[0] for part in path.split("{")[1:]]
