"""The chain: performs what the state machine decides, and shows a run as an Observable of events."""

from agentflow.chain.handle import AgentChain, AgentReply

__all__ = ["AgentChain", "AgentReply"]
