"""Settings: what may be set, and the only reader of the environment and of the configuration file."""

from agentflow.settings.loading import DEFAULT_FILE, PREFIX, Settings, provider_key
from agentflow.settings.sections import (
    ChainSettings,
    KeySettings,
    Profile,
    ProviderSettings,
    ServerSettings,
    TelemetrySettings,
)

__all__ = [
    "DEFAULT_FILE",
    "PREFIX",
    "ChainSettings",
    "KeySettings",
    "Profile",
    "ProviderSettings",
    "ServerSettings",
    "Settings",
    "TelemetrySettings",
    "provider_key",
]
