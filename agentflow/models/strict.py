"""OpenAI's strict form of a JSON Schema, and the way back: nulls that only stand for "absent".

Pure. The strict form is for the wire alone: arguments are checked against the original. In it every object is closed
and every property required, an optional one may be null instead; a schema that has a node outside of it has none.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DEPTH = 10  # levels of objects and arrays, and properties in all: what OpenAI documents
MAX_PROPERTIES = 5000

_NULL = {"type": "null"}
_DEFINITIONS = ("$defs", "definitions")
_DROPPED = frozenset({"default", "examples", "$schema"})  # they say nothing about what is valid
_KEPT = frozenset(
    {"type", "description", "title", "enum", "const", "$ref", "properties", "required", "additionalProperties"}
    | {"items", "anyOf", "pattern", "format", "multipleOf", "minItems", "maxItems", *_DEFINITIONS}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})


class _UnfitError(Exception):
    """A node has no strict form."""


def strict_schema(schema: Mapping[str, Any], *, absent_as_null: bool = True) -> dict[str, Any] | None:
    """The strict form of an object's schema; None if there is none.

    Without `absent_as_null` an optional property that may not be null is a node that has no strict form: for what
    nobody drops the nulls from again.
    """
    conversion = _Conversion(schema, absent_as_null)
    try:
        if schema.get("type") != "object" or "anyOf" in schema:
            return None
        return conversion.node(schema, 0, root=True)
    except (_UnfitError, RecursionError):
        return None


def without_absent(arguments: str, schema: Mapping[str, Any]) -> str:
    """The text of `arguments` without the nulls of optional properties that may not be null by `schema`.

    The same text if there are none, or if it is not JSON.
    """
    if "null" not in arguments:
        return arguments
    try:
        value = json.loads(arguments)
        if _drop(value, schema, schema):
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        pass  # whoever runs the call says what is wrong with it
    return arguments


class _Conversion:
    def __init__(self, root: Mapping[str, Any], absent_as_null: bool) -> None:  # noqa: FBT001  private
        self._root = root
        self._absent_as_null = absent_as_null
        self._properties = 0

    def node(self, node: Any, depth: int, *, root: bool = False) -> dict[str, Any]:
        if not isinstance(node, Mapping) or depth > MAX_DEPTH or not _KEPT.issuperset(node.keys() - _DROPPED):
            raise _UnfitError
        if node.get("format", "date") not in _FORMATS:
            raise _UnfitError
        strict = {key: value for key, value in node.items() if key not in _DROPPED}
        for key in _DEFINITIONS:
            if key in strict:
                strict[key] = {name: self.node(item, depth) for name, item in strict[key].items()}
        if "$ref" in strict:
            beside = {key: value for key, value in strict.items() if key != "$ref"}
            return {"anyOf": [{"$ref": strict["$ref"]}], **beside} if beside else strict
        self._inner(strict, depth, root=root)
        return strict

    def _inner(self, strict: dict[str, Any], depth: int, *, root: bool) -> None:
        types = _types(strict)
        if "anyOf" in strict:
            strict["anyOf"] = [self.node(item, depth) for item in strict["anyOf"]]
        elif not types and "enum" not in strict and "const" not in strict:
            raise _UnfitError  # anything at all
        if "object" in types:
            self._object(strict, depth, root=root)
        if "array" in types:
            strict["items"] = self.node(strict.get("items"), depth + 1)

    def _object(self, strict: dict[str, Any], depth: int, *, root: bool) -> None:
        properties = strict.get("properties", {} if root else None)
        if properties is None or strict.get("additionalProperties", False) is not False:
            raise _UnfitError  # a mapping with keys of the model's choice
        self._properties += len(properties)
        if self._properties > MAX_PROPERTIES:
            raise _UnfitError
        required = strict.get("required", ())
        strict["properties"] = {
            name: self._property(item, depth + 1, required=name in required) for name, item in properties.items()
        }
        strict["required"] = list(properties)
        strict["additionalProperties"] = False

    def _property(self, node: Any, depth: int, *, required: bool) -> dict[str, Any]:
        strict = self.node(node, depth)
        if required or _allows_null(node, self._root):
            return strict
        if not self._absent_as_null:
            raise _UnfitError
        return {"anyOf": [strict, _NULL]}


def _drop(value: Any, schema: Any, root: Mapping[str, Any]) -> bool:
    """Drop from `value`, in place, what only stands for "absent"; whether there was any."""
    dropped = False
    if isinstance(value, list):
        for branch in _branches(schema, root):
            for item in value if "items" in branch else ():
                dropped = _drop(item, branch["items"], root) or dropped
    elif isinstance(value, dict):
        for branch in _branches(schema, root):
            properties = branch.get("properties")
            if isinstance(properties, Mapping) and properties.keys() >= value.keys():
                return _drop_properties(value, properties, branch.get("required", ()), root)
    return dropped


def _drop_properties(value: dict[str, Any], properties: Mapping[str, Any], required: Any, root: Any) -> bool:
    absent = [
        name
        for name, item in value.items()
        if item is None and name not in required and not _allows_null(properties[name], root)
    ]
    for name in absent:
        del value[name]
    inner = [_drop(item, properties[name], root) for name, item in value.items()]
    return bool(absent) or any(inner)


def _branches(schema: Any, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schema itself with its reference followed, or all that its `anyOf` offers."""
    schema = _followed(schema, root)
    if isinstance(schema, Mapping):
        for item in schema.get("anyOf", ()):
            yield from _branches(item, root)
        yield schema


def _allows_null(schema: Any, root: Mapping[str, Any]) -> bool:
    return any(
        "null" in _types(branch) or None in branch.get("enum", ()) or branch.get("const", 0) is None
        for branch in _branches(schema, root)
    )


def _followed(schema: Any, root: Mapping[str, Any]) -> Any:
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        found: Any = root
        for part in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) and part else found
        schema = found
    return None


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    types = schema.get("type", ())
    return (types,) if isinstance(types, str) else tuple(types)
