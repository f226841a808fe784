"""`@tool`, and the tools of one agent by name.

It knows what a tool is and where tools come from; it neither reads a model's arguments nor runs anything.
"""

import functools
import hashlib
import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload, runtime_checkable

from agentflow.errors import ConfigError
from agentflow.messages import ToolSpec
from agentflow.tools.discovery import modules_of
from agentflow.tools.honesty import IsError
from agentflow.tools.policy import (
    DEFAULT_RETRIES,
    DEFAULT_TIMEOUT,
    OPTIONS,
    Approval,
    IdempotencyKey,
    Policy,
    check,
    options_of,
)
from agentflow.tools.schema import Contract, Parameters, build, called, opaque

F = TypeVar("F", bound=Callable[..., Any])

Kind: TypeAlias = Literal["sync", "coroutine", "generator", "async_generator", "question"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MARK = "__agentflow_tool__"


@runtime_checkable
class ToolObject(Protocol):
    """Any object that describes itself and runs itself. `parameters` is JSON Schema; `execute` may be async.

    It may also carry any option of `Policy` (`timeout`, `retries`, `approval`, ...) as an attribute of that name.
    """

    name: str
    description: str
    parameters: dict[str, Any]

    def execute(self, arguments: dict[str, Any]) -> Any:
        """Run one call. What it may return is what a function may return."""
        ...


@dataclass(frozen=True, kw_only=True)
class Declaration(Policy):
    """What `@tool(...)` was told. None means: as the function says. Raises `ConfigError` for what cannot be."""

    name: str | None = None
    description: str | None = None
    parameters: Parameters | None = None
    examples: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        check(self, "@tool")


@dataclass(frozen=True, eq=False, kw_only=True)
class Tool(Policy):
    """One tool, ready to be shown to a model and to be run.

    `kind` says where `function` is called: "sync" and "generator" in a thread of `pool`, "question" nowhere (the
    user is asked, and what they say is the result), the others on the loop. Raises `ConfigError` for an option that
    cannot be, and for an `idempotency_key` that names what is no parameter.
    """

    name: str
    description: str
    function: Callable[..., Any]
    kind: Kind
    contract: Contract
    examples: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        check(self, f"tool {self.name!r}")
        if self.idempotency_key is None or callable(self.idempotency_key):
            return
        known = self.parameters.get("properties", {})
        for name in self.idempotency_key:
            if name not in known:
                raise ConfigError(
                    f"tool {self.name!r}: idempotency_key names {name!r}, which is no parameter;"
                    f" its parameters are: {', '.join(known) or 'none'}"
                )

    @property
    def origin(self) -> str:
        """Where its function stands, as module and qualified name: tells it from another tool of the same name."""
        module = getattr(self.function, "__module__", "?")
        return f"{module}.{getattr(self.function, '__qualname__', type(self.function).__qualname__)}"

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        return self.contract.parameters

    @property
    def spec(self) -> ToolSpec:
        """What a model is told."""
        return ToolSpec(
            name=self.name, description=self.description, parameters=self.parameters, examples=self.examples
        )


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Parameters | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    timeout: float = DEFAULT_TIMEOUT,
    pool: str = "default",
    is_error: IsError | None = None,
    retries: int = DEFAULT_RETRIES,
    approval: Approval = False,
    idempotent: bool = False,
    idempotency_key: IdempotencyKey | None = None,
    sequential: bool = False,
    degraded: str | None = None,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Parameters | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    timeout: float = DEFAULT_TIMEOUT,
    pool: str = "default",
    is_error: IsError | None = None,
    retries: int = DEFAULT_RETRIES,
    approval: Approval = False,
    idempotent: bool = False,
    idempotency_key: IdempotencyKey | None = None,
    sequential: bool = False,
    degraded: str | None = None,
) -> F | Callable[[F], F]:
    """Declare a function, coroutine function, generator function or method to be a tool.

    Above a class it declares each public method that the class itself defines and that has a docstring; the options
    of `Policy` but `idempotency_key` are then theirs, and a method's own @tool comes first.

    The function itself stays as it is; nothing is exposed before it, or the object it belongs to, is given to an
    agent. `parameters` is JSON Schema, a pydantic model, or rows (name, type, description), in place of the
    signature. `examples` are argument objects, shown to small models and in refusals. `timeout` in seconds.
    `is_error(value)` says whether a value that was returned means failure: True, False, a text for the model, or
    None to go by the rules (`honesty`). It is called where the function was, so it must not block the loop.
    The other options are those of `Policy`. Raises `ConfigError` for what cannot be declared or marked.
    """
    declaration = Declaration(
        name=name,
        description=description,
        parameters=parameters,
        examples=examples,
        timeout=timeout,
        pool=pool,
        is_error=is_error,
        retries=retries,
        approval=approval,
        idempotent=idempotent,
        idempotency_key=idempotency_key,
        sequential=sequential,
        degraded=degraded,
    )

    def mark(marked: F) -> F:
        if isinstance(marked, type):
            _mark_methods(marked, declaration)
            return marked
        if isinstance(marked, staticmethod | classmethod):
            raise ConfigError(f"@tool must stand below @{type(marked).__name__}, directly above the function")
        try:
            setattr(marked, _MARK, declaration)
        except (AttributeError, TypeError):
            raise ConfigError(
                f"@tool cannot mark {marked!r}; wrap it in a def, or pass it in tools=[...] as it is"
            ) from None
        return marked

    return mark if function is None else mark(function)


def _mark_methods(owner: type[Any], declaration: Declaration) -> None:
    shared = Declaration(**options_of(declaration) | {"idempotency_key": None})
    if declaration != shared:
        names = ", ".join(f"{name}=" for name in OPTIONS if name != "idempotency_key")
        raise ConfigError(
            f"@tool above the class {owner.__qualname__!r} takes {names} only; the others are of one tool, give them"
            " to @tool above its method"
        )
    for name, value in vars(owner).items():
        function = getattr(value, "__func__", value)  # of a static or class method
        if inspect.isfunction(function) and not name.startswith("_") and function.__doc__ and not is_tool(function):
            setattr(function, _MARK, shared)


def is_tool(value: object) -> bool:
    """Whether `value` is a function or method that was marked with `@tool`."""
    return inspect.isroutine(value) and _declaration(value) is not None


class ToolRegistry:
    """The tools of one agent, in the order they were given.

    Items are functions (decorated or not), bound methods, objects with decorated methods (which are taken in the
    order of their definition), callable objects, `ToolObject`s and `Tool`s. Raises `ConfigError` for anything
    else, for a name that no provider would take, and for a name that is already there.
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._told: tuple[tuple[ToolSpec, ...], str] | None = None  # what is asked for at every run
        if callable(items) or isinstance(items, str | bytes):
            raise ConfigError(f"tools must be a list, not {items!r}: write tools=[...]")
        for item in items:
            self.add(item)

    def add(self, item: Any) -> None:
        """Add what `item` offers: all of it, or nothing if it raises."""
        self._add(_tools_of(item))

    def discover(self, package: str, *, factory: Callable[[type[Any]], object] | None = None) -> None:
        """Add the tools of a module, or of a package with all its subpackages, or nothing if it raises.

        Tools are the decorated functions that a module itself defines, and for each class it defines that has
        decorated methods the object that `factory(cls)` gives; None leaves the class out. Raises `ConfigError`
        for a module that cannot be imported, for a class without a factory, and as `add` does.
        """
        modules = [(module.__name__, vars(module)) for module in modules_of(package)]
        values = {
            id(value): value for name, named in modules for value in named.values() if _is_defined_in(name, value)
        }
        items = [item for value in values.values() for item in _discovered(value, factory)]
        self._add([found for item in items for found in _tools_of(item)])

    def _add(self, offered: Iterable[Tool]) -> None:
        added = {found.name: found for found in self._tools.values()}
        for found in offered:
            if not _NAME.fullmatch(found.name):
                raise ConfigError(
                    f"a tool may not be named {found.name!r}: 1 to 64 letters, digits, '_' or '-'; give @tool(name=...)"
                )
            if found.name in added:
                raise ConfigError(
                    f"two tools are named {found.name!r}: {added[found.name].origin} and {found.origin};"
                    " rename one with @tool(name=...), or as_tool(name=...) of an agent"
                )
            added[found.name] = found
        self._tools = added
        self._told = None

    def get(self, name: str) -> Tool | None:
        """The tool of this name, or None."""
        return self._tools.get(name)

    def specs(self) -> tuple[ToolSpec, ...]:
        """What a model is told about the tools: the same tuple until a tool is added."""
        return self._tell()[0]

    @property
    def hash(self) -> str:
        """SHA-256 (hex) over names, descriptions and schemas: the same for the same tools in any order."""
        return self._tell()[1]

    def _tell(self) -> tuple[tuple[ToolSpec, ...], str]:
        if self._told is None:
            shown = sorted([found.name, found.description, found.parameters] for found in self)
            digest = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
            self._told = (tuple(found.spec for found in self), digest)
        return self._told

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools


def _tools_of(item: Any) -> list[Tool]:
    if isinstance(item, Tool):
        return [item]
    if isinstance(item, type):
        raise ConfigError(f"{item.__qualname__!r} is a class; pass an object of it")
    if inspect.isroutine(item) or isinstance(item, functools.partial):
        return [_from_function(item)]
    methods = _decorated_methods(item)  # first: who decorates some has said that the others are no tools
    if methods:
        return [_from_function(method) for method in methods]
    if isinstance(item, ToolObject):
        return [_from_object(item)]
    if callable(item):
        return [_from_function(item)]
    raise ConfigError(
        f"{item!r} is no tool: expected a function, an object with @tool methods, or one with name, description,"
        " parameters and execute(arguments)"
    )


def _is_defined_in(module: str, value: Any) -> bool:
    # By its very type: other objects may answer anything when they are asked, or raise.
    return issubclass(type(value), type | types.FunctionType) and value.__module__ == module


def _discovered(value: Any, factory: Callable[[type[Any]], object] | None) -> list[Any]:
    """What a module's value offers: itself, the object made of it, or nothing."""
    if is_tool(value):
        return [value]
    if not isinstance(value, type) or not _decorated_names(value):
        return []
    if factory is None:
        raise ConfigError(
            f"{value.__module__}.{value.__qualname__} has @tool methods, which need an object: give"
            " discover(..., factory=...), a function of the class that returns one, or None to leave it out"
        )
    made = factory(value)
    return [] if made is None else [made]


def _decorated_names(kind: type[Any]) -> list[str]:
    """The names that this class or one above it has decorated, in the order of their definition."""
    names: dict[str, None] = {}
    for owner in reversed(kind.__mro__):
        for name, value in vars(owner).items():
            if _declaration(getattr(value, "__func__", value)) is not None:
                names[name] = None
    return list(names)


def _decorated_methods(item: object) -> list[Callable[..., Any]]:
    methods = (getattr(item, name) for name in _decorated_names(type(item)))
    return [method for method in methods if _declaration(method)]  # a subclass may override without @tool


def lost_overrides(item: object) -> list[str]:
    """The methods of `item` that override a decorated one without @tool, and so are no tools."""
    return [name for name in _decorated_names(type(item)) if _declaration(getattr(item, name)) is None]


def _declaration(value: object) -> Declaration | None:
    mark = getattr(value, _MARK, None)
    return mark if isinstance(mark, Declaration) else None  # an object may answer to any name


def _from_function(function: Callable[..., Any]) -> Tool:
    declared = _declaration(function) or Declaration()
    named = function.func if isinstance(function, functools.partial) else function
    name = declared.name or str(getattr(named, "__name__", type(named).__name__))
    contract = build(function, name=name, parameters=declared.parameters)
    return Tool(
        name=name,
        description=contract.description if declared.description is None else declared.description,
        function=function,
        kind=_kind(function),
        contract=contract,
        examples=_examples(name, declared.examples, contract),
        **options_of(declared),
    )


def _from_object(item: ToolObject) -> Tool:
    def execute(**arguments: Any) -> Any:
        return item.execute(arguments)

    execute.__module__, execute.__qualname__ = type(item).__module__, type(item).__qualname__

    return Tool(
        name=item.name,
        description=item.description,
        function=execute,
        kind=_kind(item.execute),
        contract=opaque(item.parameters, name=item.name, description=item.description),
        **options_of(item),
    )


def _kind(function: Callable[..., Any]) -> Kind:
    inner = called(function)
    if inspect.iscoroutinefunction(inner):
        return "coroutine"
    if inspect.isasyncgenfunction(inner):
        return "async_generator"
    return "generator" if inspect.isgeneratorfunction(inner) else "sync"


def _examples(name: str, examples: Sequence[Mapping[str, Any]], contract: Contract) -> tuple[dict[str, Any], ...]:
    for example in examples:
        for error in contract.validator.iter_errors(example):
            raise ConfigError(f"tool {name!r}: the example {example!r} does not fit its schema: {error.message}")
    return tuple(dict(example) for example in examples)
