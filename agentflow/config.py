"""From settings and flags to what they describe: tools out of modules, an agent.

It reads neither the environment nor files; `settings` does. Nothing here opens a connection.
"""

import importlib
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from agentflow.agent import Agent
from agentflow.errors import ConfigError
from agentflow.models.providers import PRESETS
from agentflow.observability.gates import build_gates
from agentflow.settings import Settings, provider_key
from agentflow.stores.base import Store
from agentflow.stores.in_memory import InMemoryStore
from agentflow.stores.sqlite import SqliteStore
from agentflow.tools.registry import Tool, is_tool

NO_TOOLS = "none"
_DEFAULT_FILE = Path(".agentflow") / "agentflow.db"  # in the user's home
DEFAULT_TOOLS = ("agentflow.tools.builtin",)


def build_agent(
    settings: Settings,
    *,
    model: str | None = None,
    base_url: str | None = None,
    tools: Iterable[str] = (),
    instructions: str = "",
    store: Store | None = None,
) -> Agent:
    """An agent as the settings say, and as these say where they are given.

    For `tools` see `tool_modules`. Raises `ConfigError` for tools that cannot be had; what is wrong with a model is
    told by its first run.
    """
    items = load_tools(tool_modules(settings, tools))
    return Agent(
        settings=settings,
        model=model,
        base_url=base_url,
        tools=items,
        instructions=instructions,
        store=store,
        gate=build_gates(settings.limits),
    )


def load_agents(target: str, settings: Settings) -> list[Agent]:
    """The agents that "module:name" stands for, where the name, "agent" if left out, is an `Agent` or a list of them.

    Those that have no gate of their own get the one that the settings describe. The module is looked for in the current
    directory too. Raises `ConfigError`.
    """
    module, _, name = target.partition(":")
    found: Any = getattr(_imported(module, "module", "{}:agent"), name or "agent", None)
    agents: list[Agent] = list(found) if isinstance(found, list | tuple) else [found]
    if not agents or not all(isinstance(agent, Agent) for agent in agents):
        raise ConfigError(f"{target!r} names no Agent and no list of them: write the module, a colon, and the name")
    gate = build_gates(settings.limits)
    for agent in agents:
        agent.gate = agent.gate or gate
    return agents


def known_secrets(settings: Settings) -> list[str]:
    """The keys and passwords that are configured, here or in the providers' variables: for who must not show them."""
    keys = [provider.api_key for provider in settings.providers.values()]
    keys += [provider_key(preset.key_variable) for preset in PRESETS.values()]
    password = urlsplit(settings.memory.url or "").password
    return [key.get_secret_value() for key in keys if key is not None] + ([password] if password else [])


def open_store(settings: Settings, default: str = "in_memory") -> Store:
    """The store that the settings name, or `default`; nothing is opened yet. Raises `ConfigError` for a bad address."""
    memory = settings.memory
    kind = memory.store or default
    if kind == "in_memory":
        return InMemoryStore(ttl=memory.ttl)
    if kind == "redis":
        from agentflow.stores.redis import RedisStore  # needs the extra `redis`

        if memory.url is None:
            raise ConfigError("memory.store is 'redis': set memory.url, such as 'redis://127.0.0.1:6379/0'")
        return RedisStore(memory.url, ttl=memory.ttl)
    path = sqlite_path(settings)
    if memory.url is None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
    return SqliteStore(path, ttl=memory.ttl)


def sqlite_path(settings: Settings) -> Path:
    """The file of the SQLite store that the settings name."""
    url = settings.memory.url
    return Path(url).expanduser() if url else Path.home() / _DEFAULT_FILE


def trace_runs(settings: Settings) -> Callable[[], None]:
    """Trace the runs of this process if `telemetry.traces` says so; call what is given at its end: it sends the rest.

    Raises `ConfigError` where OpenTelemetry is not installed.
    """
    if not settings.telemetry.traces:
        return lambda: None
    try:
        from agentflow.observability.instrumentor import export_traces  # needs the extra `otel`
    except ImportError as error:
        raise ConfigError(
            f"telemetry.traces needs OpenTelemetry ({error}): pip install 'agentflow-rx[otel]'"
        ) from error
    return export_traces()


def tool_modules(settings: Settings, names: Iterable[str] = ()) -> tuple[str, ...]:
    """The modules whose tools count: these, else those of `tools.packages`, else the built-in ones."""
    return tuple(names) or settings.tools.packages or DEFAULT_TOOLS


def load_tools(names: Iterable[str]) -> list[Any]:
    """What the modules of these names offer, in order, each object once; "none" offers nothing.

    A name may be several with commas between them.
    A module offers the functions it marks with `@tool`, its `Tool` objects, and whatever stands in its list `TOOLS`.
    Modules are also looked for in the current directory. Raises `ConfigError` for a module that cannot be imported
    or has no tools.
    """
    found: list[Any] = []
    for name in (part.strip() for text in names for part in text.split(",")):
        if name != NO_TOOLS:
            found.extend(_offered(_imported(name, "tools module", "--tools {}")))
    return list({id(item): item for item in found}.values())


def _imported(name: str, what: str, form: str) -> ModuleType:
    """The module; in messages it is called `what`, and is to be written in this form."""
    path = PurePath(name.removesuffix(".py"))
    if name.endswith(".py") or len(path.parts) > 1:
        module = ".".join(part for part in path.parts if part.isidentifier())
        raise ConfigError(f"{name!r} is the name of a file: name it as a module: {form.format(module)}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # the command's own directory stands there instead
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the module's own code may raise anything
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        place = _place(error)
        raise ConfigError(
            f"{what} {name!r} cannot be imported: {place} failed with {why}"
            if place
            else f"{what} {name!r} cannot be imported ({why}): give the dotted name of a module that is "
            f"installed or lies in the current directory, such as 'shop.tools', or {NO_TOOLS!r}"
        ) from error


def _place(error: BaseException) -> str:
    """The line of some module's code that failed while it was imported; "" if none was run."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    ours = (__file__, importlib.__file__)
    run = [frame for frame in frames if frame.filename not in ours and not frame.filename.startswith("<frozen")]
    # The line itself is not told: a key may stand in it.
    return f"{run[-1].filename}:{run[-1].lineno}" if run else ""


def _offered(module: ModuleType) -> list[Any]:
    offered = [value for value in vars(module).values() if isinstance(value, Tool) or is_tool(value)]
    listed = getattr(module, "TOOLS", ())
    if not isinstance(listed, list | tuple):
        raise ConfigError(f"TOOLS in {module.__name__!r} is {type(listed).__name__}: make it a list of tools")
    offered.extend(listed)
    if not offered:
        raise ConfigError(
            f"module {module.__name__!r} has no tools: mark functions with @tool, or list tools in TOOLS = [...]"
        )
    return offered
