"""Names that others look for: OpenTelemetry's conventions for generative AI, v0.1.0 and as they were at 1.41.

Constants only. No package has those of v0.1.0, and the one that has the earlier ones is deprecated.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Semconv: TypeAlias = Literal["0.1.0", "1.41", "both"]

SCOPE: Final = "agentflow"  # of spans and metrics alike

# -- attributes ------------------------------------------------------------------------------------------

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
AGENT: Final = "gen_ai.agent.name"
TOOL: Final = "gen_ai.tool.name"
ERROR_TYPE: Final = "error.type"
MODALITY: Final = "gen_ai.token.modality"
OLD_KIND: Final = "gen_ai.token.type"

CHAT: Final = "chat"
INVOKE_AGENT: Final = "invoke_agent"
EXECUTE_TOOL: Final = "execute_tool"

# -- attributes of spans -----------------------------------------------------------------------------------

CONVERSATION: Final = "gen_ai.conversation.id"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_STOP: Final = "gen_ai.request.stop_sequences"
REQUEST_SEED: Final = "gen_ai.request.seed"
OUTPUT_TYPE: Final = "gen_ai.output.type"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"  # seconds
USAGE_INPUT: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT: Final = "gen_ai.usage.output_tokens"
TOOL_CALL: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
SERVER: Final = "server.address"
SERVER_PORT: Final = "server.port"

# Only where content is asked for.
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"

# Our own, which the conventions have no names for.
RUN: Final = "agentflow.run.id"
CHAIN: Final = "agentflow.chain.id"
OUTCOME: Final = "agentflow.outcome"  # completed, failed, cancelled, or suspended: a further span is linked to this one
CANCEL_REASON: Final = "agentflow.cancel.reason"
USAGE_ESTIMATED: Final = "agentflow.usage.estimated"
ITERATION: Final = "agentflow.iteration"
ATTEMPT: Final = "agentflow.attempt"
TOOL_DIGEST: Final = "agentflow.tool.arguments.digest"  # the first 16 hex digits of a SHA-256
TOOL_SECONDS: Final = "agentflow.tool.duration"  # of the last attempt
TOOL_RESULT_TYPE: Final = "agentflow.tool.result.type"
TOOL_REUSED: Final = "agentflow.tool.reused_from"

# -- metrics ---------------------------------------------------------------------------------------------

INFERENCE_DURATION: Final = "gen_ai.client.inference.duration"
INFERENCE_FIRST_CHUNK: Final = "gen_ai.client.inference.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.client.inference.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.client.inference.usage.output_tokens"
OPERATION_INPUT_TOKENS: Final = "gen_ai.client.inference.operation.input_tokens"
OPERATION_OUTPUT_TOKENS: Final = "gen_ai.client.inference.operation.output_tokens"
AGENT_DURATION: Final = "gen_ai.invoke_agent.duration"
AGENT_INFERENCE_CALLS: Final = "gen_ai.invoke_agent.inference_calls"
AGENT_TOOL_CALLS: Final = "gen_ai.invoke_agent.tool_calls"
TOOL_DURATION: Final = "gen_ai.execute_tool.duration"

OLD_DURATION: Final = "gen_ai.client.operation.duration"
OLD_FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
OLD_TOKENS: Final = "gen_ai.client.token.usage"

# Bounds of histograms, as the conventions give them: seconds, tokens, calls.
CALL_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
AGENT_SECONDS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
TOKENS: Final = tuple(4**power for power in range(14))
CALLS: Final = (1, 2, 4, 8, 16, 32, 64, 128)

# How the conventions call a provider of ours; others keep their names.
_PROVIDERS: Final[Mapping[str, str]] = MappingProxyType(
    {"mistral": "mistral_ai", "xai": "x_ai", "moonshot": "moonshot_ai", "azure": "azure.ai.openai"}
)


def provider_name(provider: str) -> str:
    """The value of `gen_ai.provider.name` for a provider of ours."""
    return _PROVIDERS.get(provider, provider)
