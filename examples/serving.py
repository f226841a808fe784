"""Agents in an aiohttp service that is there already: mounted below /ai, asked over HTTP, decided by a second request.

In a service of yours `web.run_app(app)` stands where this listens on a free port and asks itself. Open /ai/agent in a
browser for the chat page, /ai/dashboard for the runs.
"""

import asyncio
import json

import aiohttp
from aiohttp import web

from agentflow import Agent, tool
from agentflow.models.scripted import ScriptedModel, call
from agentflow.transports import setup


@tool(approval=True)
def refund(order_id: str) -> str:
    """Pay back an order."""
    return f"{order_id} is paid back"


async def listen(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/ai"


async def decide(http: aiohttp.ClientSession, base: str, asked: dict[str, str]) -> None:
    decision = {"call_id": asked["call_id"], "arguments_hash": asked["arguments_hash"]}
    async with http.post(f"{base}/api/runs/{asked['run_id']}/approve", json=decision) as response:
        print("approved:", response.status)


async def main() -> None:
    model = ScriptedModel([call("refund", order_id="A-17")], "You have your money back.")
    async with Agent(name="desk", model=model, tools=[refund]) as agent:
        app = web.Application()  # with your own routes
        setup(app, [agent], prefix="/ai")
        runner, base = await listen(app)
        question = {"input": "Pay back A-17"}
        async with aiohttp.ClientSession() as http, http.post(f"{base}/api/agent/stream", json=question) as response:
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                event = json.loads(line[6:])
                if event["type"] == "approval":
                    await decide(http, base, event)
                elif event["type"] in ("tool_complete", "final"):
                    print(event["type"], event.get("result") or event.get("text"))
        await runner.cleanup()


asyncio.run(main())
