"""An agent without its tools: it says what the agent would, and can do nothing.

Who asks for it, and how long it lasts, is the business of `server` and `openai_api`.
"""

from agentflow.agent import Agent
from agentflow.settings import Settings

RAW = "-raw"  # behind the name of an agent


def without_tools(agent: Agent, settings: Settings) -> Agent:
    """One that answers by the agent's first model, in its store. Raises `ConfigError` where that has none."""
    runtime, clients, _ = agent.lend()
    options = runtime.request_options
    return Agent(
        name=f"{agent.name}{RAW}",
        model=clients[0],
        instructions=runtime.instructions,
        temperature=options.get("temperature"),
        max_tokens=options.get("max_tokens"),
        timeout=runtime.timeout,
        store=agent.store,
        bus=agent.bus,
        settings=settings,
        clock=runtime.clock,
        gate=runtime.gate,
    )
