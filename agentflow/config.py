"""From settings and flags to what they describe: tools out of modules, an agent.

It reads neither the environment nor files; `settings` does. Nothing here opens a connection.
"""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from agentflow.agent import Agent
from agentflow.errors import ConfigError
from agentflow.settings import Settings
from agentflow.tools.registry import Tool, is_tool

NO_TOOLS = "none"
DEFAULT_TOOLS = ("agentflow.tools.builtin",)


def build_agent(
    settings: Settings,
    *,
    model: str | None = None,
    base_url: str | None = None,
    tools: Iterable[str] = (),
    instructions: str = "",
) -> Agent:
    """An agent as the settings say, and as these say where they are given.

    `tools` are names of modules; without any, those of `tools.packages`, else the built-in tools. Raises
    `ConfigError` for tools that cannot be had; what is wrong with a model is told by its first run.
    """
    names = tuple(tools) or settings.tools.packages or DEFAULT_TOOLS
    return Agent(settings=settings, model=model, base_url=base_url, tools=load_tools(names), instructions=instructions)


def load_tools(names: Iterable[str]) -> list[Any]:
    """What the modules of these names offer, in order, each object once; "none" offers nothing.

    A module offers the functions it marks with `@tool`, its `Tool` objects, and whatever stands in its list `TOOLS`.
    Modules are also looked for in the current directory. Raises `ConfigError` for a module that cannot be imported
    or has no tools.
    """
    found: list[Any] = []
    for name in names:
        if name != NO_TOOLS:
            found.extend(_offered(_imported(name)))
    return list({id(item): item for item in found}.values())


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # the command's own directory stands there instead
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the module's own code may raise anything
        why = " ".join(str(error).split())
        raise ConfigError(
            f"tools module {name!r} cannot be imported ({type(error).__name__}: {why}): give the dotted name of a "
            f"module that is installed or lies in the current directory, such as 'shop.tools', or {NO_TOOLS!r}"
        ) from error


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
