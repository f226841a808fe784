"""Names that others look for: OpenTelemetry's conventions for generative AI, v0.1.0 and as they were at 1.41.

Constants only. No package has those of v0.1.0, and the one that has the earlier ones is deprecated.
"""

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
