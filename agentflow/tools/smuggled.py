"""Arguments that a model packed into the text of one: "orderId=ORD123&type=paid" given as the order number.

It only takes apart what names parameters; whether the parts fit them is for others to say. Pure.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from agentflow.tools.names import match, narrow

_MAX_LENGTH = 2000  # characters: longer text is text
_PUNCTUATION = str.maketrans("＝＆，；：、？", "=&,;:,?")
_ADDRESS = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
_KEYED = re.compile(r"\s*(?P<key>[^\W\d][\w-]*)\s*(?P<sign>[=:])(?!//|=)(?P<value>.*)", re.DOTALL)
_BARE = re.compile(r"[^\s=?:]+")
_BARE_QUERY = re.compile(r"[^=?:&]+")
_PACKED = re.compile(r"\w\s*=\s*\S")
_URL_FORMATS = frozenset({"uri", "uri-reference", "iri", "iri-reference", "uri-template", "url", "multi-host-uri"})


class Part(NamedTuple):
    """One piece of packed text; `key` is "" for a piece that names nothing."""

    key: str
    value: str


def allows_packed_text(name: str, schema: Mapping[str, Any], examples: Sequence[Mapping[str, Any]]) -> bool:
    """Whether such text may be just what this parameter takes: by pattern, URL format, description or example."""
    if "pattern" in schema or schema.get("format") in _URL_FORMATS:
        return True
    if any(allows_packed_text(name, branch, ()) for branch in schema.get("anyOf", ())):
        return True
    shown = [schema.get("description", ""), schema.get("default"), *schema.get("examples", ())]
    shown += [example.get(name) for example in examples]
    return any(isinstance(text, str) and _PACKED.search(text) for text in shown)


def take_apart(text: str, own: str, known: Sequence[str]) -> list[Part] | None:
    """The parts of `text`, which was given for the parameter `own`, or None if it is not packed.

    `known` are the tool's parameters. The keys of the parts are theirs where they match but for case and style.
    """
    if len(text) > _MAX_LENGTH or _ADDRESS.match(text):
        return None
    text = text.strip().translate(_PUNCTUATION) if not text.isascii() else text.strip()
    for parts in _readings(text):
        named = [Part(match(part.key, known) or part.key, part.value) for part in parts]
        keys = [part.key for part in named if part.key]
        if any(key in known for key in keys):
            return named if _is_packed(text, named, own, known) else None
    return None


def _readings(text: str) -> Iterator[list[Part]]:
    """The text as parts, for each separator that it may have been joined with."""
    if text.startswith("{"):
        yield _object(text)
        return
    for separator in ("&", "\n", ";", ","):
        if separator in text:
            parts = _split(text, separator)
            if sum(bool(part.key) for part in parts) + (not parts[0].key) > 1:
                yield parts
    alone = _KEYED.fullmatch(text)
    if alone:
        yield [_part(alone)]


def _object(text: str) -> list[Part]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, dict):
        return []
    return [Part(key, item if isinstance(item, str) else json.dumps(item)) for key, item in value.items()]


def _split(text: str, separator: str) -> list[Part]:
    """A piece without a key goes on with the value before it: "city: Paris, France, unit: celsius"."""
    parts: list[Part] = []
    for piece in text.lstrip("?").split(separator):
        keyed = _KEYED.fullmatch(piece)
        if keyed:
            parts.append(_part(keyed))
        elif parts and separator != "&":
            parts[-1] = Part(parts[-1].key, parts[-1].value + separator + piece)
        else:
            parts.append(Part("", piece.strip()))
    decode = unquote if separator == "&" else str
    return [Part(part.key, _unquoted(decode(part.value))) for part in parts]


def _part(keyed: re.Match[str]) -> Part:
    return Part(keyed["key"], _unquoted(keyed["value"]))


def _unquoted(value: str) -> str:
    value = value.strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _is_packed(text: str, parts: list[Part], own: str, known: Sequence[str]) -> bool:
    """Whether the parts are arguments: `own` has its part, by name or the first, and each other one names another.

    Anything else is a form, prose or code that happens to have a parameter's name in it.
    """
    keys = [part.key for part in parts if part.key]
    bare = [part for part in parts if not part.key]
    if any(key not in known for key in keys) or not (own in keys or not parts[0].key):
        return False
    if text.startswith("{"):
        return True
    if "=" in text:
        form = _BARE_QUERY if "&" in text else _BARE
        return not bare or (bare == parts[:1] and form.fullmatch(bare[0].value) is not None)
    if bare:
        return False  # "Hello, status: paid" is prose
    return len(keys) > 1 or " " not in parts[0].value or narrow(text).startswith(own)
