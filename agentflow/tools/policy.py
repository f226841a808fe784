"""How the calls of a tool are treated: what its author declares next to what a model is told.

It says what may be declared, and acts on none of it: waiting, asking, retrying and looking keys up are for others.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from agentflow.errors import ConfigError
from agentflow.tools.honesty import IsError
from agentflow.tools.schema import called

Approval: TypeAlias = bool | Callable[[Mapping[str, Any]], bool | str | None]
IdempotencyKey: TypeAlias = Callable[[Mapping[str, Any]], str] | Sequence[str]

DEFAULT_TIMEOUT = 30.0  # seconds
DEFAULT_RETRIES = 2

_MAX_RETRIES = 10
_MAX_DEGRADED = 2000  # characters: it goes into the model's context


@dataclass(frozen=True, eq=False, kw_only=True)
class Policy:
    """How calls are treated. Functions of the arguments are plain functions, called on the loop: they must not block.

    - `timeout` in seconds, waiting for a thread of `pool` included.
    - `is_error(value)` says whether a value that was returned means failure (`honesty`).
    - `retries`: further attempts after one that failed in a way that may pass (`retries`).
    - `approval`: whether a human is asked before the call, or a function of its arguments that says so; a text from
      it is the reason that the human is told (`approval`).
    - `idempotent`: running it twice with the same arguments is as good as running it once.
    - `idempotency_key`: the names of the arguments, or a function of the arguments, that tell whether two calls are
      the same deed (`effects`).
    - `sequential`: no other call of the same round runs beside it.
    - `degraded`: what the model is told when the service behind the tool is down; None for a default text.
    """

    timeout: float = DEFAULT_TIMEOUT
    pool: str = "default"
    is_error: IsError | None = None
    retries: int = DEFAULT_RETRIES
    approval: Approval = False
    idempotent: bool = False
    idempotency_key: IdempotencyKey | None = None
    sequential: bool = False
    degraded: str | None = None


OPTIONS = {field.name: field.default for field in fields(Policy)}


def options_of(item: object) -> dict[str, Any]:
    """The policy that `item` carries in attributes of these names; unchecked, and the default for each it has not."""
    return {name: getattr(item, name, default) for name, default in OPTIONS.items()}


def check(policy: Policy, where: str) -> None:
    """Raise `ConfigError`, which begins with `where`, for the first option that cannot be."""
    for name, fits, expected in _RULES:
        value = getattr(policy, name)
        if not fits(value):
            raise ConfigError(f"{where}: {name}={value!r}, expected {expected}")


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_plain_function(value: Any) -> bool:
    return callable(value) and not inspect.iscoroutinefunction(called(value))


def _are_names(value: Any) -> bool:
    # A single text is a sequence of letters, and no names at all would make all calls one.
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value) and all(map(_is_text, value))


_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("timeout", _is_time, "seconds, a finite number above 0"),
    ("pool", _is_text, "the name of a thread pool"),
    ("is_error", lambda value: value is None or _is_plain_function(value), "a plain function of the returned value"),
    (
        "retries",
        lambda value: type(value) is int and 0 <= value <= _MAX_RETRIES,
        f"a whole number from 0 to {_MAX_RETRIES}",
    ),
    (
        "approval",
        lambda value: _is_bool(value) or _is_plain_function(value),
        "True, False, or a plain function of the arguments that returns True, False, None or a reason",
    ),
    ("idempotent", _is_bool, "True or False"),
    (
        "idempotency_key",
        lambda value: value is None or _are_names(value) or _is_plain_function(value),
        "a list of names of arguments such as ['order_id'], or a plain function of the arguments that returns a text",
    ),
    ("sequential", _is_bool, "True or False"),
    (
        "degraded",
        lambda value: value is None or (_is_text(value) and len(value) <= _MAX_DEGRADED),
        f"a text for the model of at most {_MAX_DEGRADED} characters",
    ),
)
