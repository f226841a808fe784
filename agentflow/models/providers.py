"""Known providers, as data: where each is, which variable holds its key, what it accepts.

No code depends on a name in here; another OpenAI-compatible provider is another row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from agentflow.settings import Profile


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One provider. `default_model` is what its bare name means, "" if that would be a guess.

    `regions` are its other addresses by name. With `wire` "ollama" its own protocol is spoken, unless the address
    ends in "/v1". Without `key_required` a key is sent if there is one.
    """

    base_url: str
    key_variable: str
    default_model: str = ""
    key_required: bool = True
    wire: Literal["openai", "ollama"] = "openai"
    regions: Mapping[str, str] = field(default_factory=dict)
    profile: Profile = field(default_factory=Profile)


# Where a server is known to refuse fields that it does not know, no reasoning goes back to it.
_NO_REASONING = Profile(reasoning_content="never", reasoning_details=False)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "openai": Preset(
            base_url="https://api.openai.com/v1",
            key_variable="OPENAI_API_KEY",
            default_model="gpt-5-mini",
            profile=Profile(
                reasoning_content="never",
                reasoning_details=False,
                call_ids="short",
                strict_tools=True,
                developer_role=True,
                max_tokens_field="max_completion_tokens",
            ),
        ),
        "openrouter": Preset(
            base_url="https://openrouter.ai/api/v1",
            key_variable="OPENROUTER_API_KEY",
            default_model="openai/gpt-5-mini",
            profile=Profile(reasoning_content="never"),  # the details say the same and more
        ),
        "nvidia": Preset(
            base_url="https://integrate.api.nvidia.com/v1",
            key_variable="NVIDIA_API_KEY",
            default_model="meta/llama-3.1-8b-instruct",
        ),
        "agnes": Preset(
            base_url="https://apihub.agnes-ai.com/v1",
            key_variable="AGNES_API_KEY",
            default_model="agnes-2.0-flash",
            regions={"cn": "https://api.agnes-ai.cn/v1"},
        ),
        "deepseek": Preset(
            base_url="https://api.deepseek.com/v1",
            key_variable="DEEPSEEK_API_KEY",
            default_model="deepseek-v4-flash",
            # "The reasoning_content in the thinking mode must be passed back", beside every call and for good.
            profile=Profile(
                reasoning_content="always",
                reasoning_details=False,
                empty_content="text",
                structured_output="json_object",
                parallel_tool_calls=False,
            ),
        ),
        "groq": Preset(
            base_url="https://api.groq.com/openai/v1",
            key_variable="GROQ_API_KEY",
            default_model="llama-3.3-70b-versatile",
            profile=_NO_REASONING,
        ),
        "mistral": Preset(
            base_url="https://api.mistral.ai/v1",
            key_variable="MISTRAL_API_KEY",
            default_model="mistral-small-latest",
            profile=Profile(
                reasoning_content="never",
                reasoning_details=False,
                empty_content="text",
                call_ids="nine",
                seed_field="random_seed",
            ),
        ),
        "xai": Preset(
            base_url="https://api.x.ai/v1",
            key_variable="XAI_API_KEY",
            default_model="grok-code-fast-1",
            profile=Profile(reasoning_details=False),
        ),
        "dashscope": Preset(
            base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
            key_variable="DASHSCOPE_API_KEY",
            default_model="qwen-plus",
            regions={"cn": "https://dashscope.aliyuncs.com/compatible-mode/v1"},
            profile=Profile(reasoning_details=False, empty_content="text", structured_output="json_object"),
        ),
        "together": Preset(
            base_url="https://api.together.xyz/v1",
            key_variable="TOGETHER_API_KEY",
            default_model="meta-llama/Llama-3.3-70B-Instruct-Turbo",
            profile=_NO_REASONING,
        ),
        "vllm": Preset(
            base_url="http://127.0.0.1:8000/v1",
            key_variable="VLLM_API_KEY",
            key_required=False,
        ),
        "lmstudio": Preset(
            base_url="http://127.0.0.1:1234/v1",
            key_variable="LMSTUDIO_API_KEY",
            key_required=False,
            profile=Profile(empty_content="text", parallel_tool_calls=False),
        ),
        "llamacpp": Preset(
            base_url="http://127.0.0.1:8080/v1",
            key_variable="LLAMACPP_API_KEY",
            default_model="default",  # it serves one model and reads no name
            key_required=False,
        ),
        "ollama": Preset(
            base_url="http://127.0.0.1:11434",
            key_variable="OLLAMA_API_KEY",
            default_model="qwen3:4b",
            key_required=False,
            wire="ollama",
            profile=Profile(empty_content="text", parallel_tool_calls=False),  # null content is refused
        ),
    }
)

PREFIXES: Mapping[str, str] = MappingProxyType({"nv": "nvidia"})  # other names of providers

ALIASES: Mapping[str, str] = MappingProxyType({"nv/llama-3.1-8b": "nvidia/meta/llama-3.1-8b-instruct"})
