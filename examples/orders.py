"""Tools with a client of their own, typed parameters, and a model that writes its arguments badly.

What has one reading is corrected and told in a `warning`; all else is refused. A refund has a key: it is never made
twice, whatever run asks for it. The model is scripted; with a real one write Agent(model="openai/gpt-5-mini", ...).
"""

from datetime import date
from enum import Enum

from agentflow import Agent, of_type, tool
from agentflow.events import ToolCompleteEvent, WarningEvent
from agentflow.models.scripted import ScriptedModel, call


class Status(Enum):
    PAID = "paid"
    SHIPPED = "shipped"


class OrderClient:
    """Stands for what a service has already: a repository, an HTTP client."""

    async def find(self, status: Status, since: date, until: date) -> list[str]:
        return ["ORD2"] if status is Status.SHIPPED and since <= date(2025, 1, 9) <= until else []

    async def refund(self, order_id: str) -> str:
        print("the service pays back", order_id)
        return f"{order_id} is paid back"


class OrderTools:
    def __init__(self, client: OrderClient) -> None:
        self._client = client

    @tool
    async def find_orders(self, status: Status, since: date, until: date) -> list[str]:
        """Find the orders of a status and a time."""
        return await self._client.find(status, since, until)

    @tool(idempotency_key=["order_id"])
    async def refund(self, order_id: str) -> str:
        """Pay back an order."""
        return await self._client.refund(order_id)


SEARCH = call("find_orders", status="status=Shipped&since=2025/1/1&until=2025-01-31")
REFUND = call("refund", orderId="ORD2")
MODEL = ScriptedModel([SEARCH], [REFUND], "I have paid back ORD2.", [REFUND], "That was done before.")

agent = Agent(name="shop", model=MODEL, tools=[OrderTools(OrderClient())])
agent.events.pipe(of_type(WarningEvent)).subscribe(lambda event: print("told:", event.message))
ends = agent.events.pipe(of_type(ToolCompleteEvent))
ends.subscribe(lambda end: print("reused:" if end.reused_from else "done:", end.result.splitlines()[-1]))

print(agent.chat_sync("Pay back what was shipped in January.", user_id="ada").text)
print(agent.chat_sync("And once more!", user_id="ada").text)
