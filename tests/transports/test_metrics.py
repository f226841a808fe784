"""What Prometheus is given, to whom, and what of the server stands in it."""

import builtins

from agentflow import Agent, Settings
from agentflow.streams import TaskOwner
from agentflow.testing import ScriptedModel
from agentflow.transports.auth import new_key
from agentflow.transports.metrics import _warn
from tests.observability.mixed import mixed_agent, run_all, value, values
from tests.transports.served import Gate, served


async def scraped(here):
    async with here.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return values(await response.text())


async def test_the_metrics_of_the_agents_are_there_for_who_asks_on_the_loopback():
    agent = mixed_agent()
    async with served(agent) as here:
        await run_all(agent)
        found = await scraped(here)
    assert value(found, "agentflow_runs_total", agent="shop", outcome="final") == 4
    assert value(found, "agentflow_runs_in_flight", agent="shop") == 0


async def test_with_keys_only_an_operator_is_told():
    key_id, key, key_hash = new_key()
    other_id, other, other_hash = new_key()
    keys = {
        key_id: {"hash": key_hash, "user": "ops", "scopes": ["operator"]},
        other_id: {"hash": other_hash, "user": "alice"},
    }
    async with served(keys=keys) as here:
        for given, status in (("", 401), (other, 403), (key, 200)):
            headers = {"Authorization": f"Bearer {given}"} if given else {}
            async with here.get("/metrics", headers=headers) as response:
                assert response.status == status


async def test_the_names_are_those_of_the_conventions_that_are_set():
    settings = {"telemetry": {"semconv": "1.41"}}
    async with served(settings=_settings(settings)) as here:
        await here.ask()
        found = await scraped(here)
    assert value(found, "gen_ai_client_operation_duration_seconds_count") == 1
    assert not any(name.startswith("gen_ai_client_inference") for name, _ in found)


async def test_metrics_that_are_turned_off_are_not_there():
    async with served(settings=_settings({"telemetry": {"metrics": False}})) as here:
        status, body = await here.json("/metrics")
    assert (status, body["error"]["kind"]) == (404, "not_found")


async def test_without_the_extra_the_route_says_what_to_install(monkeypatch):
    own = builtins.__import__

    def without(name, *args, **fields):
        if name.startswith("agentflow.observability.") and "prometheus" in name:
            raise ImportError(name)
        return own(name, *args, **fields)

    monkeypatch.setattr(builtins, "__import__", without)
    async with served() as here:
        await here.ask()
        status, body = await here.json("/metrics")
    assert status == 501
    assert "agentflow-rx[prometheus]" in body["error"]["message"]


async def test_readers_and_what_they_are_sent_are_counted():
    gate = Gate()
    async with served(Agent(model=gate)) as here:
        async with here.get("/api/agent/stream", params={"input": "hi", "format": "events"}) as stream:
            await gate.waiting.wait()
            during = await scraped(here)
            gate.open.set()
            seen = await stream.read()
        run_id = seen.decode().split("id: ")[1].split(":")[0]
        async with here.get(f"/api/runs/{run_id}/events", headers={"Last-Event-ID": f"{run_id}:2"}) as again:
            resumed = await again.read()
        found = await scraped(here)
    assert value(during, "agentflow_stream_readers") == 1
    assert value(found, "agentflow_stream_readers") == 0
    assert value(found, "agentflow_stream_lag_events") == 0
    assert value(found, "agentflow_stream_resumes_total") == 1
    assert value(found, "agentflow_stream_bytes_total") == len(seen) + len(resumed)


async def test_the_loop_is_watched_while_a_run_goes_on():
    gate = Gate()
    async with served(Agent(model=gate)) as here:
        owner = TaskOwner()
        asking = owner.spawn(here.ask(), name="asking")
        await gate.waiting.wait()
        while not value(await scraped(here), "agentflow_loop_lag_seconds_count"):
            pass
        gate.open.set()
        await asking


async def test_the_runs_that_go_on_are_told_what_held_the_loop():
    gate, owner = Gate(), TaskOwner()
    async with served(Agent(model=gate)) as here:
        asking = owner.spawn(here.ask(), name="asking")
        await gate.waiting.wait()
        _warn(here.server, "the event loop came late", {"milliseconds": 300.0})
        gate.open.set()
        run_id = (await asking)["run_id"]
        events = await here.server.store.read(run_id, 0, 99)
    assert [(e.code, e.data) for e in events if e.type == "warning"] == [("loop_lag", {"milliseconds": 300.0})]


async def test_two_servers_in_one_process_count_for_themselves():
    one = Agent(name="one", model=ScriptedModel("a"))
    async with served(one) as here, served() as there:
        await here.ask()
        assert value(await scraped(here), "agentflow_runs_total") == 1
        assert value(await scraped(there), "agentflow_runs_total") == 0


def _settings(sections):
    return Settings(server={"shutdown_grace": 0.2}, **sections)
