"""Text that is nearly JSON; calls that were cut are in test_mutated_calls."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.tools.repair import loads, repaired


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, "x"], "b": true}',
        '```json\n{"a": [1, "x"], "b": true}\n```',
        '```\n{"a": [1, "x"], "b": true}```',
        "{'a': [1, 'x'], 'b': True}",
        '{"a": [1, "x",], "b": true , }',
        '{a: [1, "x"], b: true}',
        '{"a"：[1，"x"]，"b"：true}',
        "｛“a”: ［1, ‘x’］, “b”: true｝",
    ],
)
def test_other_notations_of_one_value_are_read(text):
    assert repaired(text) == {"a": [1, "x"], "b": True}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': 'it\\'s'}", "it's"),
        ('{"a": "it\\\'s"}', "it's"),
        ("{'a': 'say \"hi\"'}", 'say "hi"'),
        ("{'a': 'say \\\"hi\\\"'}", 'say "hi"'),
        ('{"a": "one\ntwo\tthree"}', "one\ntwo\tthree"),
        ('{"a": "None, True，{\'x\': 1,}"}', "None, True，{'x': 1,}"),
        ('{"a": "”“‘"}', "”“‘"),
        ("{'a': '\\u00e9\\n'}", "é\n"),
    ],
)
def test_what_stands_in_a_string_is_kept(text, value):
    assert repaired(text) == {"a": value}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "}",
        '{"a"',
        "{'a",
        "{'a': 'it's'}",
        "[1,,]",
        "{,}",
        "{'a': (1, 2)}",
        "{1: 2}",
        "{'a': b}",
        "{} {}",
        "“",
        "{'a': NaN}",
        "{'a': 1, 'a': 2}",
        "{'a': 1e999}",
        "{'a': '\\x41'}",
        "{'a': 0123}",
        "[" * 100_000,
    ],
)
def test_nothing_else_is_read(text):
    with pytest.raises((ValueError, RecursionError)):
        repaired(text)


def test_a_hostile_text_is_read_in_one_pass():
    with pytest.raises(ValueError, match="Expecting"):
        repaired("```\n" + " " * 100_000 + "x")
    for piece in ("'", '"', "\\", "“", "a,", "{", "'\\", "```\n", " "):
        with pytest.raises((ValueError, RecursionError)):
            repaired(piece * (100_000 // len(piece)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_json_is_the_same_value_after_repair(value):
    text = json.dumps(value, ensure_ascii=False)
    assert repaired(text) == loads(text) == value


@given(json_values, st.data())
def test_no_part_of_an_object_is_ever_completed(value, data):
    text = repr({"a": value})
    with pytest.raises((ValueError, RecursionError)):
        repaired(text[: data.draw(st.integers(0, len(text) - 1))])
