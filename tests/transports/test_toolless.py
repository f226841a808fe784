import pytest

from agentflow import Agent, Settings
from agentflow.errors import ConfigError
from agentflow.testing import ScriptedModel
from agentflow.tools import ask_user
from agentflow.transports.toolless import without_tools


async def test_it_says_what_the_agent_would_and_shares_what_it_lives_on():
    model = ScriptedModel("Hello.")
    agent = Agent(name="shop", model=model, instructions="You sell tea.", tools=[ask_user], temperature=0.5)
    async with agent, without_tools(agent, Settings()) as alone:
        assert (alone.name, len(alone.tools), alone.store, alone.bus) == ("shop-raw", 0, agent.store, agent.bus)
        assert (await alone.chat("hi")).text == "Hello."
        (request,) = model.requests
        assert (request.tools, request.temperature, request.messages[0].text) == ((), 0.5, "You sell tea.")


async def test_an_agent_without_a_model_has_none():
    async with Agent(model="nobody/knows") as agent:
        with pytest.raises(ConfigError, match="nobody"):
            without_tools(agent, Settings())
