"""A run is an Observable: several looks at one run, which still asks the model once, and a tap on all runs.

`chain.answers()` is the text alone, `of_type` narrows to one kind of event, `agent.events` is hot and sees every run
of the agent. The model is scripted; with a real one write Agent(model="openai/gpt-5-mini", ...).
"""

import asyncio

from reactivex import operators as ops

from agentflow import Agent, EventType, of_type
from agentflow.events import ToolCompleteEvent
from agentflow.models.scripted import ScriptedModel, call
from agentflow.tools import calculator

MODEL = ScriptedModel(
    [call("calculator", expression="2+3*4")],
    "2+3*4 is 14.",
)


async def main() -> None:
    async with Agent(model=MODEL, tools=[calculator]) as agent:
        counted: list[str] = []
        agent.events.filter(lambda event: event.type == EventType.MODEL_START).subscribe(
            lambda event: counted.append(event.run_id)
        )

        chain = agent.stream("What is 2+3*4?")
        chain.pipe(of_type(ToolCompleteEvent)).subscribe(lambda event: print("tool:", event.tool, repr(event.result)))
        chain.answers().pipe(ops.to_list()).subscribe(lambda pieces: print("answer:", "".join(pieces)))

        end = await chain  # a third consumer, which waits for the terminal event
        print("end:", end.type, "after", len(counted), "calls of the model")


asyncio.run(main())
