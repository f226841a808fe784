"""The modules of a package, imported: where `ToolRegistry.discover` looks.

It imports and names what cannot be imported; what in a module is a tool is for `registry` to say.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from agentflow.errors import ConfigError


def modules_of(name: str) -> Iterator[ModuleType]:
    """The module of this name, and if it is a package every module within, subpackages included, in order of name.

    A package's `__main__` is a program and is left out. Raises `ConfigError`, naming the module, for what cannot
    be imported, also for the reason that its own code raises.
    """
    module = _imported(name)
    yield module
    for found in sorted(pkgutil.iter_modules(getattr(module, "__path__", ())), key=lambda one: one.name):
        if found.name != "__main__":
            yield from modules_of(f"{name}.{found.name}")


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # importing runs foreign code
        raise ConfigError(f"tools are looked for in {name!r}, which cannot be imported: {error!r}") from error
