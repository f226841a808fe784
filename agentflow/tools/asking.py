"""`ask_user`: the tool with which a model asks the person it works for.

It has no body. Putting the question and waiting for the answer is the chain's business; an agent whose users cannot
answer, a script for example, is not given it.
"""

from typing import Any, Never

from agentflow.tools.registry import Tool
from agentflow.tools.schema import opaque

_ASK = "Ask the user one question and wait for the answer. Use it when you cannot go on without knowing something."
_QUESTION = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "minLength": 1, "description": "The question, as the user will read it."},
        "options": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Answers to choose from; leave it out if any answer will do.",
        },
    },
    "required": ["question"],
    "additionalProperties": False,
}


def _no_body(**arguments: Any) -> Never:
    raise RuntimeError(f"ask_user has no body: an agent puts its question to the user; called with {arguments!r}")


ask_user = Tool(
    name="ask_user",
    description=_ASK,
    function=_no_body,
    kind="question",
    contract=opaque(_QUESTION, name="ask_user", description=_ASK),
    examples=({"question": "Which of your two orders do you mean?", "options": ["A-17", "A-18"]},),
)
