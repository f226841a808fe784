import jsonschema
import pytest
from aiohttp import web

from agentflow import Agent, Settings
from agentflow.testing import ScriptedModel
from agentflow.transports import create_app
from agentflow.transports.bodies import AskBody, StreamQuery
from agentflow.transports.routes import Route, add, describe
from tests.transports.served import listening, served
from tests.transports.test_auth import bearer, made


def routes_of(app):
    """Every route there is, as (method, path)."""
    return {(route.method, route.resource.canonical) for route in app.router.routes()}


async def test_every_route_is_described_and_every_description_is_a_route():
    async with served() as here:
        _, document = await here.json("/openapi.json")
        described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
        assert described == routes_of(here.app)


async def test_the_description_is_of_what_the_handlers_read():
    async with served() as here:
        _, document = await here.json("/openapi.json")
        assert document["openapi"] == "3.1.0"
        chat = document["paths"]["/api/agent/chat"]["post"]
        schema = chat["requestBody"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/AskBody"}
        validator = jsonschema.Draft202012Validator(schema | {"components": document["components"]})
        assert validator.is_valid({"input": "x", "metadata": {"a": 1}})
        assert not validator.is_valid({"input": "x", "unknown": 1})
        query = {one["name"]: one for one in document["paths"]["/api/agent/stream"]["get"]["parameters"]}
        assert (query["input"]["required"], query["model"]["required"]) == (True, False)
        first = document["paths"]["/api/runs/{id}/events"]["get"]["parameters"][0]
        assert (first["in"], first["name"], first["required"]) == ("path", "id", True)
        assert document["paths"]["/healthz"]["get"]["security"] == []


async def test_all_references_of_the_description_lead_somewhere():
    async with served() as here:
        _, document = await here.json("/openapi.json")
        stack = [document]
        while stack:
            value = stack.pop()
            if isinstance(value, dict):
                if "$ref" in value:
                    name = value["$ref"].removeprefix("#/components/schemas/")
                    assert name in document["components"]["schemas"]
                stack += value.values()
            elif isinstance(value, list):
                stack += value


@pytest.mark.parametrize("path", ["/a/{one}/b/{two}", "/a/{one:[a-z]+}/{two}"])
def test_the_names_in_a_path_are_parameters(path):
    async def handler(request):
        raise NotImplementedError

    route = Route(method="GET", path=path, handler=handler, summary="s", query=StreamQuery, body=AskBody)
    ((told, operations),) = describe((route,), "1")["paths"].items()
    assert told == path.replace(":[a-z]+", "")  # what a name has to look like is no part of a template
    operation = operations["get"]
    assert [one["name"] for one in operation["parameters"] if one["in"] == "path"] == ["one", "two"]


async def test_a_route_for_operators_is_refused_to_users():
    async def handler(request):
        return web.json_response({})

    (alices, alice), (roots, root) = made("alice"), made("root", "operator")
    async with Agent(model=ScriptedModel()) as agent:
        app = create_app([agent], Settings(server={"keys": alice | root}))
        add(app, Route(method="GET", path="/api/all", handler=handler, summary="s", scope="operator"))
        async with listening(app) as here:
            assert (await here.json("/api/all", headers=bearer(alices)))[0] == 403
            assert (await here.json("/api/all", headers=bearer(roots)))[0] == 200
            assert (await here.json("/api/all"))[0] == 401
