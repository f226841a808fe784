"""Any async generator function is a model: here one that needs no provider at all.

It gets the whole conversation and yields chunks: text as it comes, calls, at the end a finish reason. Sessions,
events and tools work with it as with any other. A real one would be Agent(model="openai/gpt-5-mini", ...).
"""

import asyncio
from collections.abc import AsyncGenerator

from agentflow import Agent, ModelChunk, ModelRequest


async def parrot(request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
    said = [message.text for message in request.messages if message.role == "user"]
    yield ModelChunk(text=f"You said {said[-1]!r}")
    if len(said) > 1:
        yield ModelChunk(text=f", and before that {said[-2]!r}")
    yield ModelChunk(text=".", finish_reason="stop")


async def main() -> None:
    async with Agent(model=parrot) as agent:
        first = await agent.chat("Good morning")
        second = await agent.chat("Good night", session_id=first.session_id)
        print(first.text)
        print(second.text)


asyncio.run(main())
