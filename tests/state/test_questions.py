"""Replies that are a question written as data, and replies that only look like one."""

import json

import pytest

from agentflow.state.questions import MAX_OPTIONS, MAX_QUESTION, MAX_TEXT, Question, question_of

ASKED = Question("Which size?", ("S", "M"))


@pytest.mark.parametrize(
    "text",
    [
        '{"question": "Which size?", "options": ["S", "M"]}',
        ' \n{"options": ["S", "M"], "question": " Which size? "}\n',
        '{"question": "Which size?", "options": [" S ", "M"]}',
        '```json\n{"question": "Which size?", "options": ["S", "M"]}\n```',
        '\n```\n{"question": "Which size?",\n "options": ["S", "M"]}```\n',
        '```JSON  \r\n{"question": "Which size?", "options": ["S", "M"]}\r\n```',
    ],
)
def test_a_reply_that_is_a_question_is_one(text):
    assert question_of(text) == ASKED


def test_a_question_may_have_no_options():
    assert question_of('{"question": "你的订单号？", "options": []}') == Question("你的订单号？")


def test_half_of_a_surrogate_pair_is_no_text():
    assert question_of(r'{"question": "\ud800?", "options": ["\ude00"]}') == Question("\ufffd?", ("\ufffd",))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "Which size?",
        "{",
        "```",
        "``` ```",
        "{question: 'Which size?', options: []}",
        '{"question": "Which size?"}',
        '{"question": "Which size?", "options": ["S"], "default": "S"}',
        '{"question": "Which size?", "options": null}',
        '{"question": "Which size?", "options": "S, M"}',
        '{"question": "Which size?", "options": {"S": "M"}}',
        '{"question": "Which size?", "options": ["S", 1]}',
        '{"question": "Which size?", "options": ["S", " "]}',
        '{"question": "  ", "options": []}',
        '{"question": 1, "options": []}',
        '[{"question": "Which size?", "options": []}]',
        '"question"',
        '```json\n["question", "options"]\n```',
        'I ask: {"question": "Which size?", "options": []}',
        '{"question": "Which size?", "options": []} Please answer.',
        '```json\n{"question": "Which size?", "options": []}\n``` Please answer.',
        '```json\n```json\n{"question": "Which size?", "options": []}\n```\n```',
        '{"a":' * 3_000,
        '{"a": ' + "1" * 10_000 + "}",
    ],
)
def test_anything_else_is_none(text):
    assert question_of(text) is None


def test_a_question_has_bounds():
    def asked(length, options):
        return question_of(json.dumps({"question": "x" * length, "options": ["o"] * options}))

    assert asked(MAX_QUESTION, MAX_OPTIONS) is not None
    assert asked(MAX_QUESTION + 1, 0) is None
    assert asked(1, MAX_OPTIONS + 1) is None
    text = '{"question": "Which size?", "options": ["S", "M"]}'
    assert question_of(text.ljust(MAX_TEXT)) == ASKED
    assert question_of(text.ljust(MAX_TEXT + 1)) is None


class Watched(str):
    """A reply that tells how often it was searched through."""

    def __new__(cls, text):
        self = super().__new__(cls, text)
        self.stripped = 0
        return self

    def strip(self, *args):
        self.stripped += 1
        return super().strip(*args)


def test_ordinary_text_is_told_by_its_first_character():
    text = Watched("An answer with {braces} and ```fences```.")
    assert question_of(text) is None
    assert text.stripped == 0
