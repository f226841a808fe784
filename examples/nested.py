"""An agent as a tool of another: its chain is part of the same run, its events stand in the same sequence.

`path` tells which agent an event is of. What the agent below waits for is decided at the root, whose cancel, time limit
and budgets hold for it too. The models are scripted; with a real one write Agent(model="openai/gpt-5-mini", ...).
"""

import asyncio

from agentflow import Agent, tool
from agentflow.events import ApprovalEvent, FinalEvent, ToolCompleteEvent, ToolStartEvent
from agentflow.models.scripted import ScriptedModel, call


@tool(approval=True)
def refund(order_id: str) -> str:
    """Pay back an order."""
    return f"{order_id} is paid back"


billing = Agent(
    name="billing",
    description="Does what has to do with money.",
    model=ScriptedModel([call("refund", order_id="A-17")], "A-17 is paid back."),
    tools=[refund],
)
desk = Agent(
    name="desk",
    model=ScriptedModel([call("billing", input="Pay back A-17")], "You have your money back."),
    tools=[billing.as_tool()],
)


async def main() -> None:
    async with desk:
        chain = desk.stream("I want my money back for A-17.")
        async for event in chain:
            match event:
                case ToolStartEvent():
                    print(*event.path, "->", event.tool, event.arguments)
                case ApprovalEvent():
                    print(*event.path, "asks for", event.tool, event.arguments)
                    chain.approve(event.call_id, event.arguments_hash)
                case ToolCompleteEvent():
                    print(*event.path, "<-", event.tool, repr(event.result.splitlines()[-1]))
                case FinalEvent():
                    print(*event.path, "says", repr(event.text))


asyncio.run(main())
