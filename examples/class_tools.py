"""Tools that need something: methods of an object, which brings its client along.

Only decorated methods are offered. The model is scripted; with a real one write Agent(model="openai/gpt-5-mini", ...).
"""

import asyncio
from dataclasses import dataclass

from agentflow import Agent, tool
from agentflow.models.scripted import ScriptedModel, call


@dataclass
class Order:
    order_id: str
    status: str


class OrderClient:
    """Stands for what a service has already: a repository, an HTTP client."""

    async def fetch(self, order_id: str) -> Order:
        return Order(order_id, "shipped")


class OrderTools:
    def __init__(self, client: OrderClient) -> None:
        self._client = client

    @tool
    async def order_detail(self, order_id: str) -> Order:
        """Look up one order.

        Args:
            order_id: Order number, e.g. ORD2025010001.
        """
        return await self._client.fetch(order_id)


MODEL = ScriptedModel(
    [call("order_detail", order_id="ORD2025010001")],
    "Order ORD2025010001 has been shipped.",
)


async def main() -> None:
    async with Agent(name="shop", model=MODEL, tools=[OrderTools(OrderClient())]) as agent:
        reply = await agent.chat("Where is ORD2025010001?")
        print(reply.tools[0].result)
        print(reply.text)


asyncio.run(main())
