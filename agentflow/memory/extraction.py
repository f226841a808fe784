"""What a turn says that is worth keeping, found by rules and quoted word for word.

Pure, and without a model: it understands nothing, so that it can leave out but not invent. Rules for what people say of
themselves are for English, German and Chinese; ids, numbers, names and results of tools are found in any language.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from agentflow.messages import Message, ToolCall

MAX_LINE = 300  # characters of one finding
_MAX_SENTENCES = 200  # of one message
_SUCCESS = "[success"  # how the text of a result that is no failure begins

# What people say of themselves, and what it is about; where that varies, a group names it.
_OPENING = r"(?:(?:by the way|also|and|well|so|ok|okay|hi|hello|please note|note|remember|actually)\b[ ,:]*(?:that )?)*"
_STATEMENTS = tuple(
    (re.compile(pattern, re.IGNORECASE), subject)
    for pattern, subject in (
        (_OPENING + r"(?:my name is|call me|i am called) \S", "name"),
        (_OPENING + r"i(?: now)? live (?:in|at) \S", "home"),
        (_OPENING + r"i(?: have|'ve|'ve just| have just)? moved to \S", "home"),
        (_OPENING + r"i(?: now)? work (?:at|for|in|as) \S", "work"),
        (_OPENING + r"(?:my|our) (?:new )?([^\W\d_][\w' -]{0,40}?) (?:is|are|has|will be) \S", ""),
        (_OPENING + r"i (?:prefer|like|love|hate|dislike|use|own|have|speak|always|never|only) \S", ""),
        (_OPENING + r"i (?:want|need) (?!to know|to ask|help|you)\S", ""),
        (_OPENING + r"(?:please )?(?:always|never|only) \S", ""),
        (_OPENING + r"i(?: am|'m) (?!\w+ing\b|not sure|sorry|afraid|happy|glad)\S", ""),
        (r"(?:ich heiße|mein name ist) \S", "name"),
        (r"ich wohne (?:jetzt )?in \S", "home"),
        (r"(?:meine?|unsere?) ([^\W\d_][\w-]{0,40}) (?:ist|sind|heißt|lautet) \S", ""),
        (r"ich (?:bin|habe|mag|möchte|brauche|bevorzuge) \S", ""),
        (r"我叫|我的名字(?:是|叫)|请叫我", "name"),
        (r"我(?:现在)?住在", "home"),
        (r"我的(\w{1,12}?)(?:是|叫|改成|换成)", ""),
        (r"我(?:喜欢|讨厌|需要|想要|是|有|只|不|对.{1,20}过敏)|请(?:总是|不要|务必)", ""),
    )
)
_DECISION = re.compile(
    r"(?:(?:okay|ok|done|yes)\b[,.:]? )?(?:(?:i have|i've|i will|i'll|we have|we've|we will|we'll|we agreed|let's)\b"
    r"|(?:ich habe|ich werde|wir haben|wir werden)\b|我已|我会|我们决定|已为您)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？；])|\n+")
_QUESTION = ("?", "？", "؟")

# Words, numbers and ids. Scripts without spaces part what stands between them.
_WORD = r"(?:(?![\u2e80-\uffef])[^\W_])"
_TOKEN = re.compile(rf"{_WORD}+(?:[-_./:@+,'’]{_WORD}+)*")
_SEPARATOR = re.compile(r"[.,'’]")
_NUMBER = re.compile(r"\d[\d.,'’]*")


class Finding(NamedTuple):
    """One line of what was said. `subject` is what it is about, "" if that is not known; `pinned` is to stay."""

    kind: Literal["said", "returned", "answered", "decided"]
    subject: str
    text: str
    pinned: bool = False


def findings(messages: Sequence[Message]) -> Iterator[Finding]:
    """What is worth keeping, in the order it was said.

    What the user states (pinned where it is about themself), what tools returned for which arguments, what the
    assistant did or will do, and what else it said that holds a number or an id that no result holds. Questions and
    failures are passed over.
    """
    calls = {call.call_id: call for message in messages for call in message.tool_calls}
    returned: set[str] = set()
    for message in messages:
        if message.role == "user":
            yield from _stated(message.text)
        elif message.role == "tool" and message.text.startswith(_SUCCESS) and message.call_id in calls:
            finding = _returned(calls[message.call_id], message.text)
            returned |= values(finding.text)
            yield finding
        elif message.role == "assistant":
            yield from _answered(message.text, returned)


def sentences(text: str) -> list[str]:
    """The sentences of a text, each on one line and at most `MAX_LINE` characters; not more than 200."""
    pieces = (one_line(piece) for piece in _SENTENCE_END.split(text, maxsplit=_MAX_SENTENCES)[:_MAX_SENTENCES])
    return [piece for piece in pieces if piece]


def one_line(text: str) -> str:
    """`text` on one line, at most `MAX_LINE` characters: cut between words, where there are any, with a mark."""
    line = " ".join(text[: 8 * MAX_LINE].split())
    if len(line) <= MAX_LINE:
        return line
    cut = line[: MAX_LINE - 3]
    return (cut.rpartition(" ")[0] or cut) + "..."


def values(text: str) -> set[str]:
    """The numbers and ids in a text, each in one spelling: "1,250.00" is 1250, letters are in lower case."""
    tokens = _TOKEN.findall(unicodedata.normalize("NFKC", text))
    return {_plain(token) for token in tokens if any(character.isdigit() for character in token)}


def names(text: str) -> set[str]:
    """The words, in lower case, that are written with a capital though no sentence begins there."""
    found: set[str] = set()
    for sentence in _SENTENCE_END.split(text):
        _, *later = _TOKEN.findall(sentence) or ("",)
        found |= {word.lower() for word in later if len(word) > 1 and word[0].isupper() and word.isalpha()}
    return found


def words(text: str) -> list[str]:
    """The words of a text, in lower case, in order."""
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFKC", text))]


def _plain(token: str) -> str:
    if not _NUMBER.fullmatch(token):
        return token.lower()
    *groups, last = _SEPARATOR.split(token)
    if not groups or len(last) == 3:  # three digits behind a separator are thousands
        return "".join((*groups, last)).lstrip("0") or "0"
    return f"{''.join(groups)}.{last}".strip("0").removesuffix(".") or "0"


def _stated(text: str) -> Iterator[Finding]:
    for sentence in sentences(text):
        if sentence.endswith(_QUESTION):
            continue
        plain = sentence.replace("’", "'")
        for pattern, subject in _STATEMENTS:
            if match := pattern.match(plain):
                about = subject or (match[1].strip().lower() if pattern.groups else "")
                yield Finding("said", about, sentence, pinned=True)
                break
        else:
            if values(sentence) or names(sentence):
                yield Finding("said", "", sentence)


def _answered(text: str, returned: set[str]) -> Iterator[Finding]:
    for sentence in sentences(text):
        if sentence.endswith(_QUESTION):
            continue
        if _DECISION.match(sentence.replace("’", "'")):
            yield Finding("decided", "", sentence)
        elif values(sentence) - returned:
            yield Finding("answered", "", sentence)


def _returned(call: ToolCall, result: str) -> Finding:
    subject = one_line(f"{call.name}({_flat(call.raw_arguments)})")
    return Finding("returned", subject, one_line(f"{subject}: {_flat(result.partition(chr(10))[2])}"))


def _flat(text: str) -> str:
    """JSON as "key=value" pairs, the keys of what is nested joined by dots; other text as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return ", ".join(_pairs(value, ""))


def _pairs(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _pairs(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for item in value:
            yield from _pairs(item, path)
    elif value not in (None, "", [], {}):
        shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield f"{path}={shown}" if path else shown
