"""Settings: what may be set, and the only reader of the environment and of the configuration file."""

from agentflow.settings.loading import DEFAULT_FILE, PREFIX, Settings, captures_content, provider_key
from agentflow.settings.sections import (
    ChainSettings,
    KeySettings,
    LimitSettings,
    Profile,
    ProviderSettings,
    RateSettings,
    ServerSettings,
    TelemetrySettings,
)

__all__ = [
    "DEFAULT_FILE",
    "PREFIX",
    "ChainSettings",
    "KeySettings",
    "LimitSettings",
    "Profile",
    "ProviderSettings",
    "RateSettings",
    "ServerSettings",
    "Settings",
    "TelemetrySettings",
    "captures_content",
    "provider_key",
]
