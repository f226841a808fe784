"""A tool that streams: what an async generator yields is seen at once, as `tool_delta` events.

Objects with `done` and `total` are progress. The result that the model gets is the last item, or the joined text if
every item is text. The model is scripted; with a real one write Agent(model="openai/gpt-5-mini", ...).
"""

import asyncio
from collections.abc import AsyncIterator

from agentflow import Agent, tool
from agentflow.events import DeltaEvent, ToolDeltaEvent
from agentflow.models.scripted import ScriptedModel, call


@tool
async def count_lines(files: list[str]) -> AsyncIterator[dict[str, object]]:
    """Count the lines of files.

    Args:
        files: Names of the files.
    """
    for done, name in enumerate(files, 1):
        await asyncio.sleep(0)  # here the work would be
        yield {"done": done, "total": len(files), "message": name}
    yield {"lines": 42 * len(files)}


MODEL = ScriptedModel(
    [call("count_lines", files=["a.py", "b.py", "c.py"])],
    "The three files have 126 lines.",
)


async def main() -> None:
    async with Agent(model=MODEL, tools=[count_lines]) as agent:
        async for event in agent.stream("How long are my files?"):
            if isinstance(event, ToolDeltaEvent):
                print("tool:", event.data)
            elif isinstance(event, DeltaEvent):
                print(event.text, end="")


asyncio.run(main())
