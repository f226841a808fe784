import json

from agentflow import Agent, tool
from agentflow.events import EventType
from agentflow.testing import ScriptedModel, call
from agentflow.transports.auth import new_key
from tests.transports.served import Frames, served, settled


def agent():
    @tool
    def look(key: str) -> str:
        """Look."""
        return key

    return Agent(name="shop", model=ScriptedModel(*([call("look", key="a")], ["done"]) * 3), tools=[look])


async def test_a_snapshot_holds_what_has_ended_and_where_the_events_go_on():
    async with served(agent()) as server:
        await server.ask()
        _, told = await server.json("/api/operator/snapshot")
        assert told["agents"] == ["shop"]
        assert told["runs"] == []
        assert [row["outcome"] for row in told["recent"]["runs"]] == ["final"]
        assert [row["tool"] for row in told["recent"]["tools"]] == ["look"]
        assert (told["totals"]["runs"], told["totals"]["final"], told["unseen"]) == (1, 1, 0)
        assert {pool["name"]: pool["calls"] for pool in told["pools"]}["default"] == 1
        assert [row["model"] for row in told["recent"]["models"]] == ["scripted"] * 2
        epoch, _, number = told["position"].partition(":")
        assert len(epoch) == 16
        assert int(number) > 5


async def test_what_is_used_is_told_without_the_runs():
    async with served(agent()) as server:
        _, told = await server.json("/api/operator/health")
        _, whole = await server.json("/api/operator/snapshot")
        assert (told["connections"], told["readers"], told["slow_readers"], told["draining"]) == (0, 0, [], False)
        assert told.keys() < whole.keys()
        assert "runs" not in told


async def test_events_of_all_runs_come_as_they_happen_and_go_on_after_a_break():
    async with served(agent()) as server:
        async with server.get("/api/events") as response:
            frames = Frames(response)
            await server.ask()
            seen = []
            while not seen or seen[-1]["type"] != "final":
                seen.append(await frames.next())
            assert seen[0]["type"] == "input"
            assert {event["type"] for event in seen}.isdisjoint({"delta", "tool_delta"})
            assert EventType.TOOL_START in {event["type"] for event in seen}
        position = (await server.json("/api/operator/snapshot"))[1]["position"]
        epoch, _, number = position.partition(":")
        async with server.get("/api/events", headers={"Last-Event-ID": f"{epoch}:{int(number) - 1}"}) as response:
            assert (await Frames(response).next())["type"] in ("final", "gap")


async def test_a_position_that_is_none_is_refused():
    async with served(agent()) as server, server.get("/api/events", headers={"Last-Event-ID": "x y"}) as response:
        assert response.status == 400
        assert json.loads(await response.read())["error"]["kind"] == "request"


async def test_only_operators_may_watch():
    keys, headers = {}, {}
    for name, scopes in (("user", ("user",)), ("operator", ("user", "operator"))):
        key_id, key, hashed = new_key()
        keys[key_id] = {"hash": hashed, "user": name, "scopes": scopes}
        headers[name] = {"Authorization": f"Bearer {key}"}
    async with served(agent(), keys=keys) as server:
        for path in ("/api/operator/snapshot", "/api/operator/health", "/api/events"):
            async with server.get(path) as response:
                assert response.status == 401
            async with server.get(path, headers=headers["user"]) as response:
                assert response.status == 403
            async with server.get(path, headers=headers["operator"]) as response:
                assert response.status == 200


async def test_readers_are_counted_while_they_are_there():
    async with served(agent()) as server:
        async with server.get("/api/events"):
            assert server.server.firehose.readers == 1
        while server.server.firehose.readers:
            await settled()
