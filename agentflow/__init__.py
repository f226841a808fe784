"""agentflow: LLM agents as observable chains of typed events."""
