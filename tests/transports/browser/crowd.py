"""Many runs at once, each standing where its message says, until it is let on."""

import asyncio

from agentflow import Agent, tool
from agentflow.models.base import ModelChunk
from agentflow.testing import call


class Crowd:
    """An agent's model and tools. A message is `model`, `tool`, `person` or `failing`: where its run stands still."""

    provider = name = "crowd"

    def __init__(self):
        self.open = asyncio.Event()
        crowd = self

        @tool
        async def stock_search(near: str) -> str:
            """Search, once it may."""
            await crowd.open.wait()
            return f"three near {near}"

        @tool
        def carrier_track(parcel: str) -> str:
            """Track a parcel, and fail."""
            raise ValueError(f"no parcel {parcel}")

        @tool(approval=True)
        def refund(order: str) -> str:
            """Refund."""
            return f"refunded {order}"

        self.tools = [stock_search, carrier_track, refund]
        self.calls = {
            "tool": call("stock_search", near="Shanghai"),
            "failing": call("carrier_track", parcel="p1"),
            "person": call("refund", order="o1"),
        }

    def agent(self):
        return Agent(name="shop", model=self, tools=self.tools)

    async def stream(self, request):
        asked = next(message.text for message in reversed(request.messages) if message.role == "user")
        has_result = request.messages[-1].role == "tool"
        if asked in self.calls and not has_result:
            yield ModelChunk(calls=(self.calls[asked],), finish_reason="tool_calls", count=0)
            return
        if asked == "model":
            await self.open.wait()
        yield ModelChunk(text="Three pairs 三双.")
        yield ModelChunk(finish_reason="stop", count=0)
