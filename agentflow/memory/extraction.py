"""What a turn says that is worth keeping, found by rules and quoted word for word.

Pure, and without a model: it understands nothing, so that it can leave out but not invent. Rules for what people say of
themselves are for English, German and Chinese; ids, numbers, names and results of tools are found in any language.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from agentflow.messages import Message, ToolCall

MAX_LINE = 300  # characters of one finding
_MAX_SENTENCES = 200  # of one message
_MAX_VALUE = 60  # characters of one value in a result: what is longer is a text
_MAX_DEPTH = 8  # of what is nested in a result
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
    """One line of what was said, in the message `at`. `subject` is what it is about, "" if that is not known."""

    at: int
    kind: Literal["said", "returned", "answered", "decided"]
    subject: str
    text: str
    pinned: bool = False


def findings(messages: Sequence[Message]) -> Iterator[Finding]:
    """What is worth keeping, in the order it was said.

    What the user states (pinned where it is about themself); what tools returned for which arguments, without long
    texts, links and what most of these results say alike; what the assistant did or will do, and what else it said
    that holds a number or an id that no result holds. Questions and failures are passed over.
    """
    results = _results(messages)
    said_alike = _said_alike(dict(results.values()))
    returned: set[str] = set()
    for at, message in enumerate(messages):
        if message.role == "user":
            yield from _stated(at, message.text)
        elif message.role == "assistant":
            yield from _answered(at, message.text, returned)
        elif at in results:
            subject, pairs = results[at]
            returned |= values(message.text)
            if told := [pair for pair in pairs if pair not in said_alike]:
                yield Finding(at, "returned", subject, one_line(f"{subject}: {', '.join(told)}"))


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


def _stated(at: int, text: str) -> Iterator[Finding]:
    for sentence in sentences(text):
        if sentence.endswith(_QUESTION):
            continue
        plain = sentence.replace("’", "'")
        for pattern, subject in _STATEMENTS:
            if match := pattern.match(plain):
                about = subject or (match[1].strip().lower() if pattern.groups else "")
                yield Finding(at, "said", about, sentence, pinned=True)
                break
        else:
            if values(sentence) or names(sentence):
                yield Finding(at, "said", "", sentence)


def _answered(at: int, text: str, returned: set[str]) -> Iterator[Finding]:
    for sentence in sentences(text):
        if sentence.endswith(_QUESTION):
            continue
        if _DECISION.match(sentence.replace("’", "'")):
            yield Finding(at, "decided", "", sentence)
        elif values(sentence) - returned:
            yield Finding(at, "answered", "", sentence)


def _results(messages: Sequence[Message]) -> dict[int, tuple[str, list[str]]]:
    """The results that are no failures, by position: the call as one line, and what they say that it does not."""
    calls: dict[str | None, ToolCall] = {}
    found: dict[int, tuple[str, list[str]]] = {}
    for position, message in enumerate(messages):
        calls |= {call.call_id: call for call in message.tool_calls}
        if message.role == "tool" and message.text.startswith(_SUCCESS) and message.call_id in calls:
            call = calls[message.call_id]
            asked = dict.fromkeys(_flat(call.raw_arguments))
            pairs = [pair for pair in _flat(message.text.partition("\n")[2]) if pair not in asked]
            found[position] = (one_line(f"{call.name}({', '.join(asked)})"), pairs)
    return found


def _said_alike(results: dict[str, list[str]]) -> set[str]:
    """What most results of at least four different calls say: it is about none of them."""
    frequency = Counter(pair for pairs in results.values() for pair in set(pairs))
    return {pair for pair, count in frequency.items() if count >= 4 and 2 * count > len(results)}


def _flat(text: str) -> list[str]:
    """JSON as "key=value" pairs, the keys of what is nested joined by dots; other text as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [text] if text.strip() else []
    return list(_pairs(value, "", _MAX_DEPTH))


def _pairs(value: Any, path: str, depth: int) -> Iterator[str]:
    if not depth:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _pairs(item, f"{path}.{key}" if path else str(key), depth - 1)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for item in value:
            yield from _pairs(item, path, depth - 1)
    elif not isinstance(value, bool) and value not in (None, "", []):
        shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        if not path or (len(shown) <= _MAX_VALUE and "://" not in shown):
            yield f"{path}={shown}" if path else shown
