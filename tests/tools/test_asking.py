"""The question to the user, as a model sees it."""

import pytest

from agentflow.errors import ToolArgumentsError
from agentflow.tools.asking import ask_user
from agentflow.tools.registry import ToolRegistry
from agentflow.tools.resolvers import resolve


def test_a_question_to_the_user_is_a_tool_without_a_body():
    registry = ToolRegistry([ask_user])

    assert registry.get("ask_user") is ask_user
    assert ask_user.kind == "question"
    assert ask_user.parameters["required"] == ["question"]
    assert list(ask_user.parameters["properties"]) == ["question", "options"]
    with pytest.raises(RuntimeError, match="ask_user has no body"):
        ask_user.function(question="Which?")


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ('{"question": "Which?"}', {"question": "Which?"}),
        ('{"question": "Which?", "options": ["a", "b"]}', {"question": "Which?", "options": ["a", "b"]}),
        ('{"question": "Which?", "options": null}', {"question": "Which?"}),
    ],
)
def test_a_question_has_a_text_and_may_have_options(raw, arguments):
    assert resolve(ask_user, raw)[0] == arguments


@pytest.mark.parametrize("raw", ['{"options": ["a"]}', '{"question": ""}', '{"question": "?", "options": [1, {}]}'])
def test_a_question_without_words_is_refused(raw):
    with pytest.raises(ToolArgumentsError, match="ask_user"):
        resolve(ask_user, raw)
