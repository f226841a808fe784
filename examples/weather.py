"""The smallest agent: an ordinary function becomes a tool.

The model is scripted, so that this runs offline. With a real one write Agent(model="openai/gpt-5-mini", ...) and set
OPENAI_API_KEY, or Agent(model="my-model", base_url="http://localhost:8000/v1", ...).
"""

from agentflow import Agent, tool
from agentflow.models.scripted import ScriptedModel, call


@tool
def weather_by_city(city: str) -> dict[str, object]:
    """Tell the weather in a city.

    Args:
        city: Name of the city, e.g. Berlin.
    """
    return {"city": city, "sky": "sunny", "celsius": 21}


MODEL = ScriptedModel(
    [call("weather_by_city", city="Berlin")],
    "It is sunny in Berlin, at 21 degrees.",
)

agent = Agent(model=MODEL, instructions="You answer questions about the weather.", tools=[weather_by_city])
reply = agent.chat_sync("How is the weather in Berlin?")

for used in reply.tools:
    print(f"{used.tool}({used.arguments}) -> {used.result.splitlines()[-1]}")
print(reply.text)
