"""A value that does not fit its schema, as the one value that does, where only its notation is wrong.

A value that fits is never touched, and nothing is chosen: where two values would fit, or none, it stays as it is
and validation refuses it. Schemas come from the program, values from a model. Pure.
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsonschema.protocols import Validator

from agentflow.tools import dates, repair
from agentflow.tools.names import match, match_typo, narrow, same

_MAX_WORK = 6_000  # values validated per call, each as often as it is
_MAX_KEYS = 200  # of an object whose names are looked at
_MAX_UNKNOWN = 10  # keys of an object that may be left out: with more, it was meant for something else
_MAX_KEY = 100  # characters of a key that is compared with the known ones
_SAME_NAME = 0.8  # likeness (difflib) from which a key is a second spelling of a parameter
_MAX_LISTING = 100_000  # characters of a list that was written as text
_MAX_UNIONS = 3  # one within the other: with each, the number of readings is multiplied
_INTEGER = re.compile(r"([+-]?\d{1,4000})(?:\.0{1,20})?")
_NUMBER = re.compile(r"[+-]?\d{1,400}(?:\.\d{1,400})?(?:[eE][+-]?\d{1,3})?")
_BOOLEANS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
_YES_OR_NO = frozenset({"true", "false", "yes", "no"})
_NULLS = frozenset({"null", "none"})
_NO_LIST = frozenset({"", "null", "none", "nil", "undefined"})
_LIST_SIGNS = re.compile(r"[][{}()\"'“”‘’]")  # text with these is a list that went wrong, not what stands in one
_ONE_NUMBER = re.compile(r"\d[,，]\d{3}(?!\d)|\.\d+[,，]\d")  # may be: 1,000 and 1.000,2
_BETWEEN = re.compile(r"[,;\n、，；]")

_ABSENT: Any = object()


@dataclass(frozen=True)
class Correction:
    """One change of a model's arguments. `field` is the path with dots, "" for the whole; `after` is None for what
    was left out; `rule` is a stable name of the kind of change.
    """

    field: str
    before: Any
    after: Any
    rule: str


class _TooMuchWorkError(Exception):
    """The values of a call are too many to be fitted; the call is validated as it is."""


class Coercion:
    """Fits one call's values to one tool's schema. `made` are the corrections, in order.

    `members` tells for each enumeration, by its values as JSON, the values of its members by name: RED and Colour.RED.
    """

    def __init__(self, validator: Validator, members: Mapping[tuple[str, ...], Mapping[str, Any]]) -> None:
        self._validator = validator
        self._definitions = validator.schema.get("$defs", {}) if isinstance(validator.schema, Mapping) else {}
        self._members = members
        self._work = 0
        self._unions = 0
        self.made: list[Correction] = []

    def fit(self, value: Any, schema: Any, place: tuple[str, ...] = ()) -> Any:
        """`value`, changed where that makes it fit; the same object if it fits, if nothing is known to help, or if
        to find out is too much work.
        """
        try:
            return self._fit(value, schema, place)
        except _TooMuchWorkError:
            self.made.clear()
            return value

    def _fit(self, value: Any, schema: Any, place: tuple[str, ...]) -> Any:
        schema = self._followed(schema)
        if not isinstance(schema, dict) or self._fits(value, schema):
            return value
        branches = list(_branches(schema))
        if branches:
            return self._fit_one_of(value, branches, place)
        if "enum" in schema or "const" in schema:
            return self._fit_member(value, schema, place)
        kind = schema.get("type")
        fitter = _FITTERS.get(kind) if isinstance(kind, str) else None
        fitted = fitter(self, value, schema, place) if fitter else value
        if fitted is value and kind != "array":
            return self._unwrapped(value, schema, place)
        return fitted

    def _fits(self, value: Any, schema: Any) -> bool:
        self._work += _size(value)
        if self._work > _MAX_WORK:
            raise _TooMuchWorkError
        return self._validator.evolve(schema=schema).is_valid(value)

    def _followed(self, schema: Any) -> Any:
        for _ in range(20):
            if not isinstance(schema, dict):
                return schema
            reference = schema.get("$ref", "")
            if reference.startswith("#/$defs/"):
                schema = self._definitions.get(reference.removeprefix("#/$defs/"), {})
            elif len(schema.get("allOf", ())) == 1:
                schema = schema["allOf"][0]
            else:
                break
        return schema

    def _changed(self, value: Any, fitted: Any, schema: Any, place: tuple[str, ...], rule: str) -> Any:
        """Take `fitted` in place of `value` if it fits."""
        if fitted is _ABSENT or not self._fits(fitted, schema):
            return value
        self.made.append(Correction(".".join(place), value, fitted, rule))
        return fitted

    def _fit_one_of(self, value: Any, branches: Sequence[Any], place: tuple[str, ...]) -> Any:
        if self._unions == _MAX_UNIONS:
            return value
        self._unions += 1
        before = len(self.made)
        readings: list[tuple[Any, list[Correction]]] = []
        for branch in branches:
            fitted = self._fit(value, branch, place)
            made, self.made[before:] = self.made[before:], []
            if self._fits(fitted, branch) and all(not _equal(fitted, other) for other, _ in readings):
                readings.append((fitted, made))
        self._unions -= 1
        if len(readings) != 1:
            return value
        self.made += readings[0][1]
        return readings[0][0]

    def _fit_member(self, value: Any, schema: dict[str, Any], place: tuple[str, ...]) -> Any:
        allowed = schema.get("enum", [schema.get("const")])
        if isinstance(value, str):
            written = same(value)
            names = self._members.get(_key(allowed), {})
            found = [member for member in allowed if same(str(member)) == written and not isinstance(member, bool)]
            found += [member for name, member in names.items() if same(name) == written]
        else:
            found = [member for member in allowed if isinstance(member, str) and _text_of(value) == member]
        chosen = found[0] if found and all(_equal(member, found[0]) for member in found) else _ABSENT
        fitted = self._changed(value, chosen, schema, place, "enum")
        return self._unwrapped(value, schema, place) if fitted is value else fitted

    def _unwrapped(self, value: Any, schema: dict[str, Any], place: tuple[str, ...]) -> Any:
        """A list of one for a single value."""
        if not (isinstance(value, list) and len(value) == 1):
            return value
        before = len(self.made)
        fitted = self._fit(value[0], schema, place)
        inner, self.made[before:] = self.made[before:], []
        result = self._changed(value, fitted, schema, place, "one_of_list")
        if result is not value:
            self.made += inner
        return result

    def _fit_text(self, value: Any, schema: dict[str, Any], place: tuple[str, ...]) -> Any:
        text = _text_of(value)
        if text is None:
            return value
        as_date = dates.read(text, schema.get("format", ""))
        if as_date is not None:
            return self._changed(value, as_date, schema, place, "date")
        if isinstance(value, str):
            return self._changed(value, value.strip(), schema, place, "text")
        if schema.get("format") in ("date", "time", "date-time"):
            return value
        return self._changed(value, text, schema, place, "text")

    def _fit_integer(self, value: Any, schema: dict[str, Any], place: tuple[str, ...]) -> Any:
        found = _INTEGER.fullmatch(_narrow(value))
        return self._changed(value, int(found[1]) if found else _ABSENT, schema, place, "number")

    def _fit_number(self, value: Any, schema: dict[str, Any], place: tuple[str, ...]) -> Any:
        text = _narrow(value)
        if not _NUMBER.fullmatch(text):
            return value
        whole = _INTEGER.fullmatch(text)
        number = int(whole[1]) if whole else float(text)
        return self._changed(value, number if math.isfinite(float(text)) else _ABSENT, schema, place, "number")

    def _fit_boolean(self, value: Any, schema: dict[str, Any], place: tuple[str, ...]) -> Any:
        text = str(value) if type(value) is int else _narrow(value).casefold()
        return self._changed(value, _BOOLEANS.get(text, _ABSENT), schema, place, "boolean")

    def _fit_null(self, value: Any, schema: dict[str, Any], place: tuple[str, ...]) -> Any:
        null = None if _narrow(value).casefold() in _NULLS else _ABSENT
        return self._changed(value, null, schema, place, "null")

    def _fit_list(self, value: Any, schema: dict[str, Any], place: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            first = schema.get("prefixItems", [])
            schemas = [*first, *[schema.get("items", {})] * (len(value) - len(first))]
            fitted = [
                self._fit(item, one, (*place, str(n)))
                for n, (item, one) in enumerate(zip(value, schemas, strict=False))
            ] + value[len(schemas) :]
            return fitted if any(a is not b for a, b in zip(fitted, value, strict=True)) else value
        if value is None or (isinstance(value, str) and len(value) > _MAX_LISTING):
            return value
        unpacked = self._unpacked(value, list, schema, place)
        if unpacked is not value:
            return unpacked
        readings = [[value]]
        if isinstance(value, str):
            readings = _listings(value)
        return self._fit_unpacked(value, readings, schema, place, "list")

    def _fit_object(self, value: Any, schema: dict[str, Any], place: tuple[str, ...]) -> Any:
        if not isinstance(value, dict):
            return self._unpacked(value, dict, schema, place)
        before = len(self.made)
        given = self.name_keys(value, schema, place)
        properties, other = schema.get("properties", {}), schema.get("additionalProperties")
        fitted = {name: self._fit(item, properties.get(name, other), (*place, name)) for name, item in given.items()}
        for name, item in list(fitted.items()):
            optional = name in properties and name not in schema.get("required", ())
            if item is None and optional and not self._fits(None, properties[name]):
                del fitted[name]
                self.made.append(Correction(".".join((*place, name)), None, None, "null"))
        return fitted if len(self.made) > before else value

    def name_keys(
        self, value: dict[str, Any], schema: Mapping[str, Any], place: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """The value with the schema's names for its keys, without keys that the schema does not know."""
        properties: dict[str, Any] = schema.get("properties", {})
        required = [name for name in schema.get("required", ()) if name not in value]
        if not properties or len(value) > _MAX_KEYS:
            return value
        closed = schema.get("additionalProperties") is False
        named: dict[str, Any] = {}
        unknown = 0
        for key, item in value.items():
            if len(key) > _MAX_KEY:
                named[key] = item
                continue
            path = ".".join((*place, key))
            missing = [name for name in properties if name not in value]
            name = key if key in properties else match(key, missing if closed else required)
            name = name or (match_typo(key, required) if closed else None)
            unknown += name is None
            if name is not None and name not in named:
                named[name] = item
                if name != key:
                    self.made.append(Correction(path, key, name, "name"))
            elif closed and unknown <= _MAX_UNKNOWN and _is_harmless(key, item, missing, properties):
                self.made.append(Correction(path, item, None, "unknown_dropped"))
            else:
                named[key] = item
        return named

    def _unpacked(self, value: Any, kind: type[Any], schema: dict[str, Any], place: tuple[str, ...]) -> Any:
        """A list or object that was given as JSON text."""
        if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
            return value
        try:
            inner = repair.repaired(value)
        except (ValueError, RecursionError):
            return value
        readings = [inner] if isinstance(inner, kind) else []
        return self._fit_unpacked(value, readings, schema, place, "json_text")

    def _fit_unpacked(
        self, value: Any, readings: Sequence[Any], schema: dict[str, Any], place: tuple[str, ...], rule: str
    ) -> Any:
        before = len(self.made)
        found: list[tuple[Any, list[Correction]]] = []
        for reading in readings:
            fitted = self._fit(reading, schema, place)
            made, self.made[before:] = self.made[before:], []
            if self._fits(fitted, schema):
                found.append((fitted, made))
        if len(found) != 1:
            return value
        self.made += [Correction(".".join(place), value, found[0][0], rule), *found[0][1]]
        return found[0][0]


_Fitter = Callable[[Coercion, Any, dict[str, Any], tuple[str, ...]], Any]
_FITTERS: dict[str, _Fitter] = {
    "string": Coercion._fit_text,
    "integer": Coercion._fit_integer,
    "number": Coercion._fit_number,
    "boolean": Coercion._fit_boolean,
    "null": Coercion._fit_null,
    "array": Coercion._fit_list,
    "object": Coercion._fit_object,
}


def _branches(schema: dict[str, Any]) -> Iterator[Any]:
    for key in ("anyOf", "oneOf"):
        yield from schema.get(key, ())
    kinds = schema.get("type")
    if isinstance(kinds, list) and "enum" not in schema:
        yield from ({**schema, "type": kind} for kind in kinds)


def _is_harmless(key: str, item: Any, missing: Sequence[str], known: Iterable[str]) -> bool:
    """Whether an unknown key may be left out: it holds one plain value and is no way of writing a parameter.

    A yes or no is never left out: without its `dry_run: true`, a call does what was not meant.
    """
    if isinstance(item, dict | list | bool) or _narrow(item).casefold() in _YES_OR_NO:
        return False
    key, absent = same(key), [same(name) for name in missing]
    near = any(name in key or key in name for name in absent) or difflib.get_close_matches(key, absent)
    return not near and not difflib.get_close_matches(key, map(same, known), cutoff=_SAME_NAME)


def _listings(text: str) -> list[list[str]]:
    """What a text that is no JSON may mean as a list: itself alone, its pieces, a number with a decimal comma."""
    if _LIST_SIGNS.search(text) or _ONE_NUMBER.search(text) or _narrow(text).casefold() in _NO_LIST:
        return []
    pieces = [piece.strip() for piece in _BETWEEN.split(text) if piece.strip()]
    return [[text], pieces, [text.replace(",", ".")]] if len(pieces) > 1 else [[text]]


def _size(value: Any) -> int:
    """How many values there are in `value`, itself counted; long text counts for more."""
    if isinstance(value, dict):
        return 1 + sum(map(_size, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(_size, value))
    return 1 + len(value) // 1000 if isinstance(value, str) else 1


def _narrow(value: Any) -> str:
    return narrow(value).strip() if isinstance(value, str) else ""


def _text_of(value: Any) -> str | None:
    """Text, or a whole number as text; other numbers have lost how they were written."""
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int and abs(value) < 10**1000 else None


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def _key(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(json.dumps, values))
