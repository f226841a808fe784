import pytest

from agentflow import Agent, InMemoryStore, tool
from agentflow.testing import ScriptedModel, call
from agentflow.tools import ask_user
from tests.transports.served import Gate, served
from tests.transports.test_auth import bearer, made

VERBS = {
    "cancel": {},
    "answer": {"text": "x"},
    "approve": {"call_id": "c"},
    "reject": {"call_id": "c"},
    "amend": {"call_id": "c", "arguments": {}},
}


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def paying():
    return Agent(model=ScriptedModel([call("pay", amount=5)], "done", "done again"), tools=[pay])


async def asked(here, **fields):
    status, body = await here.posted("/api/agent/chat", {"input": "x", **fields})
    assert status == 202
    return f"/api/runs/{body['run_id']}", body["pending"][0]


async def result(here, path):
    """What the run of this path came to: its calls and its answer."""
    async with here.get(f"{path}/events") as response:
        await response.read()
    told = (await here.json(path))[1]
    return [(one["status"], one["result"], one["arguments"]) for one in told["tools"]], told["text"]


async def test_an_approved_call_runs_with_the_arguments_that_were_looked_at():
    async with served(paying()) as here:
        path, approval = await asked(here)
        decision = {"call_id": approval["call_id"], "arguments_hash": "of others"}
        status, body = await here.posted(f"{path}/approve", decision)
        assert (status, body["error"]["kind"]) == (409, "not_pending")
        decision["arguments_hash"] = approval["arguments_hash"]
        assert await here.posted(f"{path}/approve", decision) == (202, {"run_id": path.rpartition("/")[2]})
        assert await result(here, path) == ([("success", "[success]\npaid 5", {"amount": 5})], "done")
        status, body = await here.posted(f"{path}/approve", decision)
        assert (status, body["error"]["kind"]) == (409, "not_pending")


async def test_a_rejected_call_does_not_run():
    async with served(paying()) as here:
        path, approval = await asked(here)
        assert (await here.posted(f"{path}/reject", {"call_id": approval["call_id"], "why": "too much"}))[0] == 202
        ((status, told, _),), _ = await result(here, path)
        assert status == "rejected"
        assert "too much" in told


async def test_an_amended_call_runs_with_the_new_arguments_if_they_fit():
    async with served(paying()) as here:
        path, approval = await asked(here)
        amend = {"call_id": approval["call_id"], "arguments": {"amount": "much"}}
        status, body = await here.posted(f"{path}/amend", amend)
        assert (status, body["error"]["kind"]) == (400, "arguments")
        assert (await here.posted(f"{path}/amend", amend | {"arguments": {"amount": 7}}))[0] == 202
        assert (await result(here, path))[0] == [("success", "[success]\npaid 7", {"amount": 7})]


async def test_a_question_is_answered_and_by_whom_is_known():
    key, keys = made("alice")
    agent = Agent(model=ScriptedModel([call("ask_user", question="Why?")], "done"), tools=[ask_user])
    async with served(agent, keys=keys) as here:
        status, body = await here.posted("/api/agent/chat", {"input": "x"}, headers=bearer(key))
        assert status == 202
        path = f"/api/runs/{body['run_id']}"
        assert (await here.posted(f"{path}/answer", {"text": "so"}, headers=bearer(key)))[0] == 202
        async with here.get(f"{path}/events", headers=bearer(key)) as response:
            await response.read()
        (resolved,) = [one for one in await here.server.store.read(body["run_id"], 0, 100) if one.type == "resolved"]
        assert (resolved.decision, resolved.text, resolved.by) == ("answered", "so", "alice")


async def test_a_run_is_cancelled_once_and_after_its_end_nothing_happens():
    model = Gate()
    async with served(Agent(model=model)) as here, here.post("/api/agent/stream", {"input": "x"}) as response:
        await model.waiting.wait()
        (record,) = await here.server.store.list_runs()
        path = f"/api/runs/{record.run_id}"
        for _ in range(3):
            assert (await here.posted(f"{path}/cancel"))[0] == 202
        await response.read()
        assert (await here.posted(f"{path}/cancel", {}))[0] == 202
        _, told = await here.json(path)
        assert (told["state"], told["error"]["kind"], told["text"]) == ("cancelled", "user", "first ")


async def test_a_run_of_another_process_is_asked_to_end_and_decided_there():
    store = InMemoryStore()
    agent = Agent(model=Gate(), store=store)
    elsewhere = agent.start("x")
    async for _ in elsewhere:
        break
    async with served(Agent(model=ScriptedModel(), store=store)) as here:
        path = f"/api/runs/{elsewhere.run_id}"
        status, body = await here.posted(f"{path}/answer", {"text": "so"})
        assert (status, body["error"]["kind"]) == (409, "not_pending")
        assert (await here.json(path))[1]["state"] == "awaiting_model"
        assert (await here.posted(f"{path}/cancel"))[0] == 202
        assert (await elsewhere).reason == "user"
    await agent.aclose()
    await store.aclose()


async def test_everything_of_another_user_looks_as_if_it_were_not_there():
    (alices, alice), (bobs, bob), (roots, root) = made("alice"), made("bob"), made("root", "user", "operator")
    async with served(paying(), keys=alice | bob | root) as here:
        _, body = await here.posted("/api/agent/chat", {"input": "x", "session_id": "s1"}, headers=bearer(alices))
        run_id = body["run_id"]

        async def answers(key, run_id, session_id):
            """What each verb of each route says, but for the id."""
            found = []
            for method, path, body in (
                ("GET", f"/api/runs/{run_id}", None),
                ("GET", f"/api/runs/{run_id}/events", None),
                *(("POST", f"/api/runs/{run_id}/{verb}", fields) for verb, fields in VERBS.items() if verb != "cancel"),
                ("GET", f"/api/sessions/{session_id}", None),
                ("DELETE", f"/api/sessions/{session_id}", None),
            ):
                async with here.client.request(method, here.base + path, json=body, headers=bearer(key)) as response:
                    text = (await response.text()).replace(run_id, "R").replace(session_id, "S")
                    found.append((response.status, text))
            headers = bearer(key) | {"Last-Event-ID": f"{run_id}:1"}
            for path in ("/api/agent/stream?message=x", f"/api/runs/{run_id}/events"):
                async with here.get(path, headers=headers) as response:
                    found.append((response.status, (await response.text()).replace(run_id, "R")))
            return found

        foreign = await answers(bobs, run_id, "s1")
        assert foreign == await answers(bobs, "0" * 36, "s2")
        assert {status for status, _ in foreign} == {404}
        assert (await here.posted(f"/api/runs/{run_id}/cancel", {}, headers=bearer(bobs)))[0] == 404
        assert (await here.json("/api/sessions", headers=bearer(bobs)))[1]["sessions"] == []
        assert (await here.json(f"/api/runs/{run_id}", headers=bearer(alices)))[1]["state"] == "suspended"
        assert (await here.json(f"/api/runs/{run_id}", headers=bearer(roots)))[0] == 200
        assert (await here.json("/api/sessions/s1", headers=bearer(roots)))[0] == 404  # operators have runs, not talks
        async with here.delete("/api/sessions/s1", headers=bearer(alices)) as response:
            assert response.status == 204


async def test_without_keys_the_user_is_who_the_request_says():
    async with served() as here:
        body = await here.ask(user_id="alice")
        path = f"/api/runs/{body['run_id']}"
        queries = {"": 404, "?user_id=bob": 404, "?user_id=alice": 200, "?userId=alice": 200}
        assert {query: (await here.json(path + query))[0] for query in queries} == queries
        assert (await here.posted(f"{path}/cancel", {}))[0] == 404
        assert (await here.posted(f"{path}/cancel", {"user_id": "alice"}))[0] == 202


@pytest.mark.parametrize("run_id", ["x", "..", "%2e%2e", "a%2Fb", "%00", "%27%22", "*", "x" * 200, "r:1"])
async def test_ids_that_cannot_be_are_unknown(run_id):
    async with served() as here:
        paths = [f"/api/runs/{run_id}", f"/api/sessions/{run_id}"]
        if run_id not in ("..", "%2e%2e"):  # what follows these is looked for one level up
            paths.append(f"/api/runs/{run_id}/events")
        for path in paths:
            async with here.get(path) as response:
                assert response.status == 404
        for verb, fields in VERBS.items():
            assert (await here.posted(f"/api/runs/{run_id}/{verb}", fields))[0] == 404
