"""A model asks its user: by the tool `ask_user`, or by a reply that is nothing but a question written as JSON.

Either way the run is suspended until `chain.answer(...)`. The model is scripted; with a real one write
Agent(model="openai/gpt-5-mini", ...).
"""

import asyncio
import json

from agentflow import Agent
from agentflow.events import QuestionEvent
from agentflow.models.scripted import ScriptedModel, call
from agentflow.tools import ask_user

MODEL = ScriptedModel(
    [call("ask_user", question="Which order do you mean?", options=["A-17", "A-18"])],
    json.dumps({"question": "Where shall it go?", "options": []}),
    "A-18 goes to Berlin.",
)
ANSWERS = {"Which order do you mean?": "A-18", "Where shall it go?": "To Berlin"}  # a person would be asked


async def main() -> None:
    async with Agent(model=MODEL, tools=[ask_user]) as agent:
        chain = agent.stream("Send me my order.")
        async for event in chain:
            if isinstance(event, QuestionEvent):
                print(event.text, list(event.options), "->", ANSWERS[event.text])
                chain.answer(ANSWERS[event.text], event.question_id)
        print((await chain.reply()).text)


asyncio.run(main())
