"""What of a conversation a model is shown, and what is kept of it for later: windows, summaries, facts."""

from agentflow.memory.compression import MemoryPolicy, due
from agentflow.memory.pairing import repair
from agentflow.memory.summary import Made, summarise
from agentflow.memory.window import Window

__all__ = ["Made", "MemoryPolicy", "Window", "due", "repair", "summarise"]
