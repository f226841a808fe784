"""Holding load within limits: a user's runs are counted, and a model that keeps failing is not asked for a while.

What may be set is in `[limits]` of agentflow.toml; one gate stands before all agents that are given it.
"""

import asyncio
from collections.abc import AsyncGenerator

from agentflow import Agent, ModelChunk, Settings
from agentflow.errors import ModelConnectionError, RateLimitedError
from agentflow.models.base import ModelRequest
from agentflow.observability.gates import build_gates

SETTINGS = Settings(
    limits={
        "rates": {"users": {"per": "user", "requests": "3/m"}},
        "breaker": {"window": 2, "minimum": 2},
        "wait": 0.1,
    },
    model={"retries": {"attempts": 1}},
)


class Away:
    """A model whose provider cannot be reached."""

    asked = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        self.asked += 1
        if request.messages:
            raise ModelConnectionError("nobody is there")
        yield ModelChunk()


async def main() -> None:
    gate, model = build_gates(SETTINGS.limits), Away()
    async with Agent(model=model, degraded="Not now, please ask again later.", settings=SETTINGS, gate=gate) as agent:
        for number in range(1, 4):
            reply = await agent.chat("Is anybody there?", user_id="kim")
            print(number, reply.text, f"the model was asked {model.asked} times")
        try:
            await agent.chat("And now?", user_id="kim")
        except RateLimitedError as error:
            print("kim has to wait:", error.retry_after is not None)
        print("lee may ask:", (await agent.chat("Hello?", user_id="lee")).text)
    if gate is not None:
        print([(breaker["name"], breaker["state"]) for breaker in gate.snapshot()["breakers"]])
        await gate.aclose()


asyncio.run(main())
