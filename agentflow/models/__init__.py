"""Model clients: one interface, one module per kind of provider, one registry that resolves model strings."""

from agentflow.models.base import CallRequest, ChatModel, FunctionModel, ModelChunk, ModelRequest
from agentflow.models.openai import OpenAIModel, Timeouts
from agentflow.models.routing import resolve
from agentflow.models.scripted import ScriptedModel, call

__all__ = [
    "CallRequest",
    "ChatModel",
    "FunctionModel",
    "ModelChunk",
    "ModelRequest",
    "OpenAIModel",
    "ScriptedModel",
    "Timeouts",
    "call",
    "resolve",
]
