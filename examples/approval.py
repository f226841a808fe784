"""A human decides before money moves: a refund over 100 waits for a yes, a smaller one does not.

The waiting run is suspended: it holds no task and no connection, for days if need be. An approval is bound to the hash
of exactly the arguments that were looked at. The model is scripted; with a real one write
Agent(model="openai/gpt-5-mini", ...).
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from agentflow import Agent, tool
from agentflow.events import ApprovalEvent
from agentflow.models.scripted import ScriptedModel, call


def over_100(arguments: Mapping[str, Any]) -> str | None:
    return f"{arguments['amount']} is more than 100" if arguments["amount"] > 100 else None


@tool(approval=over_100)
def refund(order_id: str, amount: int) -> str:
    """Pay back an amount for an order."""
    return f"paid back {amount} for {order_id}"


MODEL = ScriptedModel(
    [
        call("refund", order_id="A", amount=40),
        call("refund", order_id="B", amount=250),
        call("refund", order_id="C", amount=9000),
    ],
    "A and B are paid back; C was rejected: it is not our order.",
)


async def main() -> None:
    async with Agent(model=MODEL, tools=[refund]) as agent:
        chain = agent.start("Pay back the orders A, B and C.")
        reply = await chain.reply()
        print(reply.state, "after", [record.result for record in reply.tools if record.status == "success"])

        for asked in reply.pending:
            assert isinstance(asked, ApprovalEvent)
            print("approve", asked.arguments, "because", asked.reason, "?")
            if asked.arguments == {"order_id": "B", "amount": 250}:
                chain.approve(asked.call_id, asked.arguments_hash, by="kim")
            else:
                chain.reject(asked.call_id, "it is not our order", by="kim")

        await chain
        reply = await chain.reply()
        for record in reply.tools:
            print(record.arguments, record.status)
        print(reply.text)


asyncio.run(main())
