"""Prompts and grammars with which a very small model decides on a tool call and words a result.

Pure text work: nothing here talks to a model. The forms were chosen by measuring SmolLM2-135M; a bigger model has
no need of them.

A small model follows no tool protocol and copies what stands last. So it is asked once, under a grammar that leaves
it only whole, valid calls or "no tool"; and the example questions shown to it are the ones most like the user's, the
most alike last.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from agentflow.errors import ModelProtocolError
from agentflow.messages import Message, ToolSpec
from agentflow.models.base import CallRequest

WireMessage = dict[str, str]

MAX_SHOTS = 6  # example questions shown for a decision: more cost time and gave no better calls
MAX_RESULT_CHARACTERS = 2000  # of a tool's result that the model is shown

# The measurements hold for this system message; instructions of a user's own make a 135M model's calls worse.
_SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
_NO_TOOL = '{"tool": null}'
_CHAT = ("Hello!", "Who wrote Hamlet?", "Thank you!", "What is a dog?", "Tell me a story.")
_PLAIN = (("Who wrote Hamlet?", "William Shakespeare wrote Hamlet."), ("Hello!", "Hello! How can I help you?"))
_RESULTS = (
    ("What is 7*6?", "42", "The answer is 42."),
    ("When does the train to Rome leave?", "train: Rome, departure: 18:30", "The train to Rome leaves at 18:30."),
    ("Who is on duty?", "Anna", "Anna is on duty."),
)
_USE_RESULT = "Question: {question}\nResult: {result}\nAnswer in one sentence with the result."
_FAILURES = (
    ("When is high tide?", "no data for this harbour", "I could not find out: no data for this harbour."),
    (
        "Where is parcel 77?",
        "TimeoutError: the server at port 8 is too busy",
        "I could not find out: the server at port 8 is too busy.",
    ),
    ("What is on at the cinema?", "Unknown city 'Pariss'", "I could not find out: unknown city 'Pariss'."),
)
_TELL_FAILURE = "Question: {question}\nFailure: {result}\nSay in one sentence what failed."
_COMMON_WORDS = frozenset("a an and are for get i in is it me of please s tell the to what you".split())  # noqa: SIM905  words
_KEYWORDS = frozenset(
    "type properties required items prefixItems enum const anyOf oneOf allOf $ref $defs definitions "  # noqa: SIM905  words
    "additionalProperties minimum maximum minItems maxItems minLength maxLength".split()
)
_SCHEMA_MAPS = ("properties", "$defs", "definitions")
_STATUS_LINE = re.compile(r"\A\[(?:(?P<good>success|degraded)|(?P<bad>error|timeout|rejected))\b[^\]]*\]")
_DECISION = re.compile(r'\{"tool": "(?P<name>[^"]+)", "arguments": (?P<arguments>.*)', re.DOTALL)
_WORD = re.compile(r"[a-z]+|[^\sa-z\d\"'{}:,.?!_]")
_PATH = re.compile(r"[A-Za-z_]+(?:/[A-Za-z_]+)+")
_IN_DESCRIPTION = re.compile(r"\be\.g\.\s+([^\s,;)]*[^\s,;).])")


def decision_prompt(question: str, tools: Sequence[ToolSpec]) -> list[WireMessage]:
    """The messages after which the model names a tool with its arguments, or none."""
    ranked = [(_likeness(question, asked), 1, asked, _NO_TOOL) for asked in _CHAT]
    for tool in tools:
        for arguments in tool.examples[:2] or (example_arguments(tool.parameters),):
            asked = _question(tool, arguments)
            about = f"{asked} {tool.name} {tool.description}"
            ranked.append((_likeness(question, about), 0, asked, _call(tool.name, arguments)))
    ranked.sort(key=lambda shot: shot[:2])  # equally alike: "no tool" stands later, and so is the likelier answer
    return [_SYSTEM, *_shots((asked, said) for _, _, asked, said in ranked[-MAX_SHOTS:]), _user(question)]


def decision_grammar(tools: Sequence[ToolSpec]) -> str:
    """A grammar (llguidance) of exactly one valid call of one of `tools`, or the word for none."""
    rules = ["%llguidance {}", f"none: {json.dumps(_NO_TOOL)}"]
    for number, tool in enumerate(tools):
        head, tail = _call_text(tool.name, "\n").split("\n")
        rules += [
            f"call_{number}: {json.dumps(head)} arguments_{number} {json.dumps(tail)}",
            f"arguments_{number}: %json {json.dumps(_grammar_schema(tool.parameters))}",
        ]
    choices = " | ".join(["none", *(f"call_{number}" for number in range(len(tools)))])
    return "\n".join([*rules, f"start: {choices}"])


def read_decision(text: str) -> CallRequest | None:
    """The call that `text` makes, None for no tool. The arguments are the exact text, cut if `text` is.

    Raises `ModelProtocolError` if it is neither, which the grammar should have made impossible.
    """
    if text == _NO_TOOL:
        return None
    found = _DECISION.match(text)
    if found is None:
        raise ModelProtocolError(f"the local model wrote {text[:80]!r} where its grammar allows only a tool call")
    return CallRequest(name=found["name"], arguments=found["arguments"].removesuffix("}"))


def result_prompt(question: str, results: Sequence[str]) -> list[WireMessage]:
    """The messages after which the model says in a sentence what the tools gave, or why they gave nothing."""
    failed = all((status := _STATUS_LINE.match(result)) and status["bad"] for result in results)
    form, examples = (_TELL_FAILURE, _FAILURES) if failed else (_USE_RESULT, _RESULTS)
    shots = _shots((form.format(question=asked, result=result), said) for asked, result, said in examples)
    result = "; ".join(map(_result, results))[:MAX_RESULT_CHARACTERS]
    return [_SYSTEM, *shots, _user(form.format(question=question, result=result))]


def chat_prompt(messages: Sequence[Message], room: int) -> list[WireMessage]:
    """The messages after which the model answers from what it knows.

    Tool rounds are left out: the answers after them hold what mattered. `room` is in tokens: the oldest turns give
    way, never the system messages or the last message.
    """
    system = [_wire(message) for message in messages if message.role in ("system", "developer")] or [_SYSTEM]
    said = [_wire(message) for message in messages if message.role in ("user", "assistant") and message.text]
    shots = _shots(_PLAIN)
    used = sum(map(_tokens, [*system, *shots]))
    kept: list[WireMessage] = []
    for message in reversed(said):
        used += _tokens(message)
        if kept and used > room:
            break
        kept.insert(0, message)
    if len(kept) > 1 and kept[0]["role"] == "assistant":  # an answer without its question
        del kept[0]
    return [*system, *shots, *kept]


def example_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments that fit an object schema: declared examples, defaults and choices, else a value of the type."""
    properties: dict[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    wanted = [name for name in properties if name in required] or list(properties)[:1]
    return {name: _example(name, properties[name]) for name in wanted}


def _example(name: str, schema: Any) -> Any:
    if not isinstance(schema, dict):
        return name
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    named = _IN_DESCRIPTION.search(schema.get("description", ""))
    if named is not None and schema.get("type") == "string":  # shows more than a default such as "UTC"
        return named[1]
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    by_type = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    return by_type.get(str(schema.get("type")), name.replace("_", " "))


def _question(tool: ToolSpec, arguments: dict[str, Any]) -> str:
    """A question that these arguments answer: the description with the argument in the place of its name.

    "Get the weather of a city." with {"city": "Berlin"} is "Get the weather of Berlin"; where the description does
    not speak of the argument, its value is added: "Look up one order: ORD2025010001".
    """
    task = tool.description.strip().partition("\n")[0].rstrip(".") or tool.name.replace("_", " ")
    if not arguments:
        return task
    values = [_spoken(value) for value in arguments.values()]
    letters = next(iter(arguments)).replace("_", "")
    phrase = r"\b(?:an?|one|the)\s+(?:\w+\s+)??" + r"\s*".join(map(re.escape, letters)) + r"\b"
    named = re.sub(phrase, lambda _: values[0], task, count=1, flags=re.IGNORECASE)
    return f"{task}: {', '.join(values)}" if named == task else ", ".join([named, *values[1:]])


def _spoken(value: Any) -> str:
    """An argument as a person would say it: "New York" for "America/New_York"."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return value.rpartition("/")[2].replace("_", " ") if _PATH.fullmatch(value) else value


def _likeness(question: str, other: str) -> int:
    return len((_words(question) & _words(other)) - _COMMON_WORDS)


def _words(text: str) -> set[str]:
    """The words and signs in `text`, all numbers as one, every ideograph by itself."""
    numbers = {"#"} if any(character.isdigit() for character in text) else set()
    return numbers.union(_WORD.findall(text.lower()))


def _call(name: str, arguments: dict[str, Any]) -> str:
    return _call_text(name, json.dumps(arguments, ensure_ascii=False))


def _call_text(name: str, arguments: str) -> str:
    return f'{{"tool": "{name}", "arguments": {arguments}}}'


def _grammar_schema(schema: dict[str, Any]) -> dict[str, Any]:
    # Written without line breaks, as in the examples. A keyword the grammar engine does not know would make it
    # drop the whole grammar without a word; what is left out here, the tool's own validation still checks.
    spacing = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", ", "lenient": True}
    known: dict[str, Any] = _known_keywords(schema)
    return {"type": "object", **known, "x-guidance": spacing}


def _known_keywords(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_known_keywords(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _SCHEMA_MAPS:
            kept[key] = {name: _known_keywords(item) for name, item in value.items()}
        elif key in ("enum", "const"):
            kept[key] = value
        elif key in _KEYWORDS:
            kept[key] = _known_keywords(value)
    if "properties" in kept:
        kept.setdefault("additionalProperties", False)  # else the model invents arguments
    return kept


def _result(text: str) -> str:
    """A tool's result as the model copies it best: no status line, an object as `key: value` pairs."""
    text = _STATUS_LINE.sub("", text, count=1).strip() or text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return ", ".join(f"{key}: {item}" for key, item in value.items()) if isinstance(value, dict) else text


def _shots(pairs: Iterable[tuple[str, str]]) -> list[WireMessage]:
    return [message for asked, said in pairs for message in (_user(asked), {"role": "assistant", "content": said})]


def _user(text: str) -> WireMessage:
    return {"role": "user", "content": text}


def _wire(message: Message) -> WireMessage:
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": message.text}


def _tokens(message: WireMessage) -> int:
    """An upper estimate: SmolLM2 has about 4 Latin letters, but less than one ideograph, in a token."""
    return 8 + len(message["content"].encode()) // 2
