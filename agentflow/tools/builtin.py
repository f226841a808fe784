"""Tools that come with agentflow: arithmetic and the time.

They need no network, no files and no keys, and never evaluate code.
"""

import ast
import math
import operator
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from agentflow.tools.registry import tool

Number: TypeAlias = int | float

_MAX_LENGTH = 500  # characters of an expression
_MAX_BITS = 4096  # of an integer on the way: enough for 10**1000, never a hang
_MAX_DEPTH = 50

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def _round(number: Number, digits: int = 0) -> Number:
    if abs(digits) > 300:  # round(1, -10**9) would first work out 10**10**9
        raise ValueError("round takes at most 300 digits")
    return round(number, digits) if digits else round(number)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "ceil": math.ceil, "cos": math.cos, "exp": math.exp, "floor": math.floor, "log": math.log,
    "log10": math.log10, "max": max, "min": min, "round": _round, "sin": math.sin, "sqrt": math.sqrt, "tan": math.tan,
}  # fmt: skip
_CONSTANTS = {"pi": math.pi, "e": math.e}


@tool(examples=[{"expression": "2+3*4"}, {"expression": "(17-5)/4"}], idempotent=True)
def calculator(expression: str) -> Number:
    """Work out an arithmetic expression exactly.

    Args:
        expression: Numbers, + - * / // % **, parentheses, pi, e, and abs, ceil, cos, exp, floor, log, log10, max,
            min, round, sin, sqrt, tan. For example: (2+3)*4
    """
    if len(expression) > _MAX_LENGTH:
        raise ValueError(f"the expression has {len(expression)} characters, at most {_MAX_LENGTH} are allowed")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        raise ValueError(f"not an arithmetic expression: {expression!r}") from error
    return _value(tree.body, 0)


def _value(node: ast.expr, depth: int) -> Number:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the expression is nested deeper than {_MAX_DEPTH} levels")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _bounded(_UNARY[type(sign)](_value(operand, depth + 1)))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, depth + 1), _value(right, depth + 1))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _bounded(_BINARY[type(sign)](_value(left, depth + 1), _value(right, depth + 1)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*(_value(item, depth + 1) for item in args)))
    raise ValueError(
        f"{ast.unparse(node)!r} is not allowed; use numbers, + - * / // % **, parentheses, {', '.join(_CONSTANTS)}"
        f" and {', '.join(_FUNCTIONS)}"
    )


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MAX_BITS:
        raise ValueError("the power is too large")
    return _bounded(base**exponent)


def _bounded(number: Any) -> Number:
    if isinstance(number, complex):
        raise ValueError("the result is not a real number")  # noqa: TRY004  of the expression, not of a Python type
    if isinstance(number, int) and number.bit_length() > _MAX_BITS:
        raise ValueError("a number on the way is too large")
    if not math.isfinite(number):
        raise ValueError("the result is not a finite number")
    result: Number = number
    return result


@tool(examples=[{"timezone": "Asia/Tokyo"}, {"timezone": "Europe/Paris"}], idempotent=True)
def current_time(timezone: str = "UTC") -> str:
    """Tell the current date and time.

    Args:
        timezone: IANA name of the time zone, e.g. Europe/Berlin.
    """
    try:
        zone = ZoneInfo(timezone)
    except (KeyError, ValueError, OSError) as error:  # unknown, a path that leads out, a directory
        raise ValueError(f"unknown time zone {timezone!r}; give an IANA name such as Europe/Berlin") from error
    return datetime.now(zone).isoformat(timespec="seconds")


BUILTIN_TOOLS: tuple[Callable[..., Any], ...] = (calculator, current_time)
