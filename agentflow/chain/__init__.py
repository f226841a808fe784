"""The chain: performs what the state machine decides, and shows a run as an Observable of events."""

from agentflow.chain.handle import AgentChain, AgentReply
from agentflow.chain.request import AgentRequest

__all__ = ["AgentChain", "AgentReply", "AgentRequest"]
