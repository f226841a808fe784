"""`agentflow doctor`: whether a run can be started here and agents be served, and what to do about what is missing.

What only a store or a server needs is in `doctor_service`. It changes nothing, fetches nothing and shows no key. That a
provider accepts the key and has the model is for `agentflow models check` to find out.
"""

import asyncio
import importlib.metadata
import importlib.util
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from agentflow.cli.doctor_service import Finding, examine_service
from agentflow.config import load_tools, tool_modules
from agentflow.errors import ConfigError
from agentflow.models.base import ChatModel
from agentflow.models.local import LocalModel
from agentflow.models.local_files import INSTALL_HINT, engine_installed
from agentflow.models.routing import known_providers, resolve_chain
from agentflow.settings import DEFAULT_FILE, Settings
from agentflow.tools.lint import lint_all
from agentflow.tools.registry import ToolRegistry

REACH_SECONDS = 3.0  # for one host
_PACKAGES = ("agentflow-rx", "reactivex", "aiohttp", "pydantic", "msgspec")


async def examine(*, offline: bool = False) -> list[Finding]:
    """All findings, in the order in which they build on one another. `offline` opens no connection."""
    findings = [_versions(), _uvloop()]
    try:
        settings = Settings()
        findings += [_file(settings), *_keys(settings)]
    except ConfigError as error:
        return [*findings, Finding("problem", "settings", str(error))]
    tools, registry = _tools(settings)
    findings += [*tools, _local(settings), *await _models(settings, offline=offline)]
    return findings + await examine_service(settings, registry, offline=offline)


def _versions() -> Finding:
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    return Finding("ok", "versions", f"Python {platform.python_version()}, {packages}")


def _uvloop() -> Finding:
    if importlib.util.find_spec("uvloop") is not None:
        return Finding("ok", "uvloop", importlib.metadata.version("uvloop"))
    return Finding("note", "uvloop", "not installed; services run faster with it: pip install 'agentflow-rx[uvloop]'")


def _file(settings: Settings) -> Finding:
    path = (settings.config or Path(DEFAULT_FILE)).absolute()
    if path.is_file():
        return Finding("ok", "settings", f"from {path}")
    return Finding("note", "settings", f"no {DEFAULT_FILE} here: `agentflow init` writes one with the defaults")


def _keys(settings: Settings) -> list[Finding]:
    known = known_providers(settings)
    found = [provider.name for provider in known if provider.key_found]
    missing = [f"{its.name} ({its.key_variable})" for its in known if its.key_required and not its.key_found]
    return [
        Finding("ok", "keys", f"there for {', '.join(found) or 'no provider'}"),
        Finding("note", "keys", f"to use another provider, set its variable: {', '.join(missing) or 'none is left'}"),
    ]


def _tools(settings: Settings) -> tuple[list[Finding], ToolRegistry]:
    try:
        registry = ToolRegistry(load_tools(tool_modules(settings)))
    except ConfigError as error:
        return [Finding("problem", "tools", str(error))], ToolRegistry([])
    found = [Finding("ok", "tools", ", ".join(tool.name for tool in registry) or "none")]
    remarks = lint_all(registry)
    if remarks:
        text = f"{len(remarks)} things may mislead a model; `agentflow tools --lint` tells all. {remarks[0]}"
        found.append(Finding("note", "tools", text))
    return found, registry


def _local(settings: Settings) -> Finding:
    if not engine_installed():
        return Finding("note", "local model", f"not installed; {INSTALL_HINT}")
    try:
        text = LocalModel(settings.model.local_path).describe()
    except ConfigError as error:
        return Finding("note", "local model", str(error))
    fetch = "; `agentflow models pull` fetches it, or else the first run" if "not there yet" in text else ""
    return Finding("ok", "local model", text + fetch)


async def _models(settings: Settings, *, offline: bool) -> list[Finding]:
    """A finding for each model that a run may use when none is named; one that is ready is enough."""
    try:
        models = resolve_chain(None, settings)
    except ConfigError as error:
        return [Finding("problem", "model", str(error))]
    findings = [await _model(model, settings, offline=offline) for model in models]
    return [*_meaning(models, settings), *_one_is_enough(findings)]


def _meaning(models: Sequence[ChatModel], settings: Settings) -> list[Finding]:
    """What the configured string comes to: what was meant may be another provider's."""
    if settings.model.default is None:
        return []
    names = ", then ".join(_name(model) for model in models)
    return [Finding("ok", "model string", f"{settings.model.default!r} means {names}")]


def _name(model: ChatModel) -> str:
    return f"{getattr(model, 'provider', '?')}/{getattr(model, 'name', '?')}"


def _one_is_enough(findings: Sequence[Finding]) -> list[Finding]:
    ready = any(finding.level == "ok" for finding in findings)
    return [replace(finding, level="note") if ready and finding.level == "problem" else finding for finding in findings]


async def _model(model: ChatModel, settings: Settings, *, offline: bool) -> Finding:
    name = _name(model)
    endpoint = getattr(model, "endpoint", None)
    if endpoint is None:
        path = settings.model.local_path
        if isinstance(model, LocalModel) and path is not None and not path.expanduser().is_file():
            return Finding("problem", "model", f"{name}: {str(path)!r} does not exist: correct model.local_path")
        return Finding("ok", "model", f"{name}, in this process's care")
    if offline:
        return Finding("ok", "model", f"{name} at {endpoint.base_url}, not tried (--offline)")
    fault = await unreachable(endpoint.base_url)
    if fault is not None:
        advice = "check the network, the address (providers.<name>.base_url), and that the server runs"
        return Finding("problem", "model", f"{name}: {endpoint.base_url} cannot be reached ({fault}): {advice}")
    return Finding(
        "ok", "model", f"{name} at {endpoint.base_url}, which can be reached; `agentflow models check` asks it"
    )


async def unreachable(address: str) -> str | None:
    """Why no connection to the host of an address comes about, TLS included; None if one does. Sends no request."""
    parts = urlsplit(address)
    secure = parts.scheme == "https"
    try:
        async with asyncio.timeout(REACH_SECONDS):
            port = parts.port or (443 if secure else 80)
            _, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure or None)
    except TimeoutError:
        return f"no answer within {REACH_SECONDS:g} s"
    except OSError as error:
        return str(error) or type(error).__name__
    writer.transport.abort()
    return None
