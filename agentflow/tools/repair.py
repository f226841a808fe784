"""The JSON of a model: read strictly, or rewritten where only its notation is wrong.

It never completes anything: no bracket, quote or value is added at the end, so what was cut stays cut. Pure.
"""

import json
import math
import re
from typing import Any

_FENCE = re.compile(r"```[A-Za-z0-9]*[ \t]*\r?\n(.*)```", re.DOTALL)

# A string in any quotes, a word, or one other character. No part can match one text in two ways, so this is linear.
_TOKEN = re.compile(
    r'"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"'
    r"|'(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'"
    r"|“(?P<curly>[^”\\]*(?:\\.[^”\\]*)*)”"
    r"|‘(?P<curled>[^’\\]*(?:\\.[^’\\]*)*)’"
    r"|(?P<word>[^\W\d]\w*)"
    r"|(?P<space>\s+)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_UNCLOSED = ("'", '"', "“", "‘", "\\")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_WIDE = str.maketrans("｛｝［］：，＂", '{}[]:,"')
_CONTROL = {code: f"\\u{code:04x}" for code in range(0x20)}
_RAW_QUOTE = re.compile(r'\\.|"', re.DOTALL)


def loads(text: str) -> Any:
    """The value of strict JSON. Raises ValueError (also for NaN, infinities and a key given twice), RecursionError."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)


def repaired(text: str) -> Any:
    """The value of text that is JSON but for a code fence, quotes, commas before a closing bracket, Python's words,
    keys without quotes, raw line breaks in strings, or full-width punctuation. Raises as `loads` does.
    """
    fenced = _FENCE.fullmatch(text.strip())
    return loads(_rewritten(fenced[1] if fenced else text))


def _rewritten(text: str) -> str:
    tokens = _tokens(text)
    written: list[str] = []
    before = ""  # the last character that is no white space
    for index, token in enumerate(tokens):
        kind = token.lastgroup or ""
        if kind == "space":
            written.append(" ")
            continue
        following = _next(tokens, index)
        if kind == "word":
            piece = f'"{token[0]}"' if following == ":" else _PYTHON.get(token[0], token[0])
        elif kind == "other":
            piece = token[0].translate(_WIDE)
            if piece == "," and following in ("}", "]") and before not in ("{", "[", ","):
                continue
        else:
            piece = _string(token[kind])
        written.append(piece)
        before = piece[-1]
    return "".join(written)


def _tokens(text: str) -> list[re.Match[str]]:
    tokens: list[re.Match[str]] = []
    for token in _TOKEN.finditer(text):
        if token[0] in _UNCLOSED:  # and no further: each of them would be looked for to the end of the text
            raise ValueError(f"a string that begins at character {token.start()} is not closed")
        tokens.append(token)
    return tokens


def _next(tokens: list[re.Match[str]], index: int) -> str:
    """The first character after this token that is no white space."""
    following = tokens[index + 1 : index + 3]
    found = next((token[0][0] for token in following if token.lastgroup != "space"), "")
    return found.translate(_WIDE)


def _string(body: str) -> str:
    """What stood between quotes of any kind, as a JSON string."""

    def escape(found: re.Match[str]) -> str:
        if found[0] == '"':
            return '\\"'
        return "'" if found[0] == "\\'" else found[0]

    return f'"{_RAW_QUOTE.sub(escape, body).translate(_CONTROL)}"'


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Which of two values counts differs between readers, so what was approved may not be what is run.
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number
