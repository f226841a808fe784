"""A real Prometheus reads a running server, and finds all that the dashboard and the alerts ask for."""

import math
import os

import pytest

from agentflow import Agent, Settings
from agentflow.observability.dashboards import export
from agentflow.observability.gates import build_gates
from agentflow.testing import ScriptedModel, call
from tests.observability.expressions import alerts, conditions, queries
from tests.observability.mixed import look, mixed_agent, run_all
from tests.observability.prometheus_server import Scrapes, is_installed, prometheus, promtool
from tests.transports.served import served

WITHIN_CI = os.environ.get("CI") == "true"  # noqa: TID251  where nothing may be left out
pytestmark = pytest.mark.skipif(
    not is_installed() and not WITHIN_CI, reason="Prometheus is not installed: apt-get install prometheus"
)

LIMITS = {"rates": {"everybody": {"per": "all", "requests": "1000/s"}}, "breaker": {"window": 1000}}


def all_kinds(times):
    """Agents of one server whose runs give every series: mixed ones, and one that goes round in circles."""
    settings = Settings(server={"shutdown_grace": 0.2}, limits=LIMITS)
    gate = build_gates(settings.limits)
    shop = mixed_agent(times, gate=gate)
    circles = [[call("look", key="a")]] * 6 + ["it is a"]
    lost = Agent(name="lost", model=ScriptedModel(*circles * times), tools=[look], store=shop.store, gate=gate)
    return shop, lost, settings


async def asked_for_again_and_again(here, shop, lost):
    await run_all(shop)
    await lost.chat("where is it?")
    async with here.get("/api/agent/stream", params={"input": "hi", "format": "events", "agent": "lost"}) as stream:
        await stream.read()


async def test_promtool_has_nothing_to_say_against_the_metrics():
    shop, lost, settings = all_kinds(times=2)
    async with served(shop, lost, settings=settings) as here:
        await asked_for_again_and_again(here, shop, lost)
        async with here.get("/metrics") as response:
            text = await response.text()
    assert promtool("check", "metrics", text=text) == (0, "")


def test_promtool_has_nothing_to_say_against_the_alerts(tmp_path):
    _, alerts_file = export(tmp_path)
    code, said = promtool("check", "rules", str(alerts_file))
    assert (code, f"SUCCESS: {len(alerts())} rules found" in said) == (0, True)


async def test_every_expression_of_the_dashboard_and_of_the_alerts_finds_something(tmp_path):
    _, alerts_file = export(tmp_path)
    shop, lost, settings = all_kinds(times=4)
    async with served(shop, lost, settings=settings) as here:
        scrapes = Scrapes(here.server)
        target = here.base.removeprefix("http://")
        async with prometheus(tmp_path, target, alerts_file, here.client) as server:
            for _ in range(2):  # a rate is of what is seen to grow
                await asked_for_again_and_again(here, shop, lost)
                await scrapes.wait(2)
            await scrapes.wait(3)
            found = {expression: await server.query(expression) for expression in {*queries(), *conditions()}}
            rules = await server.get("/api/v1/rules")
            names = await server.get("/api/v1/label/__name__/values")
    assert [expression for expression, values in found.items() if not values] == []
    undefined = [text for text, values in found.items() if all(math.isnan(float(value)) for value in values)]
    assert undefined == []
    assert [rule["name"] for group in rules["groups"] for rule in group["rules"]] == [one["alert"] for one in alerts()]
    assert not [name for name in names if name.startswith(("otel_", "target_"))]
