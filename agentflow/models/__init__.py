"""Model clients: one interface, one module per kind of provider, one registry that resolves model strings."""

from agentflow.models.base import CallRequest, ChatModel, FunctionModel, ModelChunk, ModelRequest, Tokenizer
from agentflow.models.http import Timeouts
from agentflow.models.ollama import OllamaModel
from agentflow.models.openai import OpenAIModel
from agentflow.models.resilience import RetryPolicy
from agentflow.models.routing import resolve, resolve_chain
from agentflow.models.scripted import ScriptedModel, call

__all__ = [
    "CallRequest",
    "ChatModel",
    "FunctionModel",
    "ModelChunk",
    "ModelRequest",
    "OllamaModel",
    "OpenAIModel",
    "RetryPolicy",
    "ScriptedModel",
    "Timeouts",
    "Tokenizer",
    "call",
    "resolve",
    "resolve_chain",
]
