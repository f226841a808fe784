"""What checks a call's arguments against its tool's JSON Schema: jsonschema, made strict on formats and linear in time.

It knows no tools, and corrects nothing. Pure.
"""

import json
import re
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any
from uuid import UUID

from jsonschema import Draft202012Validator, FormatChecker, ValidationError, validators
from jsonschema.protocols import Validator
from referencing import Registry

# Of what Python reads, only what pydantic reads alike: it takes 20250131 for seconds since 1970.
_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d|$)", re.IGNORECASE)
_formats = FormatChecker(formats=())


@_formats.checks("date", raises=ValueError)
def _is_date(value: object) -> bool:
    return not isinstance(value, str) or (_ISO.match(value) is not None and bool(date.fromisoformat(value)))


@_formats.checks("time", raises=ValueError)
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or (value[2:3] == ":" and time.fromisoformat(value) is not None)


@_formats.checks("date-time", raises=ValueError)
def _is_date_time(value: object) -> bool:
    return not isinstance(value, str) or (_ISO.match(value) is not None and bool(datetime.fromisoformat(value)))


@_formats.checks("uuid", raises=ValueError)
def _is_uuid(value: object) -> bool:
    return not isinstance(value, str) or bool(UUID(value))


def _unique_items(validator: Validator, unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """`uniqueItems` in linear time: jsonschema compares each item with each, which takes minutes for 20,000."""
    if unique and validator.is_type(instance, "array"):
        seen = {json.dumps(_whole(item), sort_keys=True) for item in instance}
        if len(seen) < len(instance):
            yield ValidationError("has an item twice")


def _whole(value: Any) -> Any:
    """The value with an int for each whole float: to JSON Schema, 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value


_Validator = validators.extend(  # type: ignore[no-untyped-call]  # jsonschema has no types for it
    Draft202012Validator, {"uniqueItems": _unique_items}
)


def validator_of(schema: dict[str, Any]) -> Validator:
    """A validator of `schema` that fetches nothing. The formats it checks are date, time, date-time and uuid."""
    # Without its "$schema": jsonschema would go by it and take the class of its own.
    schema = {key: item for key, item in schema.items() if key != "$schema"}
    checker: Validator = _Validator(schema, registry=Registry(), format_checker=_formats)
    return checker
