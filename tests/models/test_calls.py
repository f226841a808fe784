import json

import msgspec
import pytest

from agentflow.errors import ModelProtocolError
from agentflow.models.base import CallRequest
from agentflow.models.calls import MAX_ARGUMENTS, MAX_CALLS, CallAssembly, CallPart, FunctionPart


def function(name, arguments):
    return FunctionPart(name=name, arguments=msgspec.Raw(json.dumps(arguments)))


def part(call_id=None, name=None, arguments=None, index=None):
    return CallPart(index=index, id=call_id, function=function(name, arguments))


def assembled(*parts):
    calls = CallAssembly()
    for piece in parts:
        calls.add(piece)
    return [(call.id, call.name, call.arguments) for call in calls.requests()]


def test_another_id_at_the_same_index_opens_a_new_call():
    assert assembled(part("a", "f", '{"x":1}', 0), part("b", "f", '{"x":2}', 0)) == [
        ("a", "f", '{"x":1}'),
        ("b", "f", '{"x":2}'),
    ]


def test_fragments_without_id_belong_to_the_call_opened_last():
    for index in (0, None):
        first = [part("a", "f", "", index), part(None, None, '{"x"', index), part("", "", ":1}", index)]
        second = [part("b", "g", "", index), part(None, None, '{"y":', index), part(None, None, "2}", index)]
        assert assembled(*first, *second) == [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')]


def test_id_name_and_arguments_may_come_one_by_one_and_again():
    for index in (0, None):
        parts = [part("a", None, None, index), part("a", "f", None, index), part("a", "f", "{", index)]
        assert assembled(*parts, part("a", None, "}", index)) == [("a", "f", "{}")]


def test_a_name_may_come_before_its_id():
    assert assembled(part(None, "f"), part("a", None, "{}")) == [("a", "f", "{}")]


def test_calls_without_any_id_are_told_apart_by_index():
    parts = [part(None, "f", "{", 0), part(None, "g", "[", 1), part(None, None, "}", 0), part(None, None, "]", 1)]
    assert assembled(*parts) == [(None, "f", "{}"), (None, "g", "[]")]


def test_whole_calls_without_id_and_index_are_told_apart():
    parts = [part(None, "f", '{"x":1}'), part(None, "f", '{"x":2}'), part("", "g", "{}")]
    assert assembled(*parts) == [(None, "f", '{"x":1}'), (None, "f", '{"x":2}'), (None, "g", "{}")]


def test_a_name_that_is_repeated_with_each_fragment_opens_nothing():
    assert assembled(part(None, "f", '{"x"'), part(None, "f", ":1}")) == [(None, "f", '{"x":1}')]


def test_calls_with_one_constant_id_all_survive():
    parts = [part("call", "f", "{}", 0), part("call", "f", "{}", 1)]
    assert assembled(*parts) == [("call", "f", "{}"), ("call", "f", "{}")]


def test_null_empty_and_wrong_types_never_overwrite():
    parts = [part("a", "f", "{}", 0), part("", "", "", 0), part(None, None, None, 0), part(7, 7, None, 0)]
    assert assembled(*parts[:3]) == [("a", "f", "{}")]
    assert assembled(*parts)[0] == ("a", "f", "{}")


def test_arguments_that_are_an_object_are_its_text():
    assert assembled(part("a", "f", {"n": [1, None]})) == [("a", "f", '{"n": [1, null]}')]


def test_repeated_and_cut_arguments_are_not_repaired():
    assert assembled(part("a", "f", '{"x":1}', 0), part(None, None, '{"x":1}', 0)) == [("a", "f", '{"x":1}{"x":1}')]
    assert assembled(part("a", "f", '{"path": "a", "text": "abc', 0)) == [("a", "f", '{"path": "a", "text": "abc')]
    assert assembled(part("a", "f", None, 0)) == [("a", "f", "")]


def test_halves_of_a_surrogate_pair_meet_across_fragments():
    assert assembled(part("a", "f", '"\ud83d', 0), part(None, None, '\ude00"', 0)) == [("a", "f", '"😀"')]
    assert assembled(part("a", "f", '"\ud83d', 0), part(None, None, '."', 0)) == [("a", "f", '"\ufffd."')]


def test_the_old_form_is_one_call_without_id_unless_there_are_real_ones():
    calls = CallAssembly()
    calls.add_legacy(function("f", "{"))
    calls.add_legacy(function("", "}"))
    assert calls.requests() == (CallRequest(name="f", arguments="{}"),)
    calls.add(part("a", "g", "{}"))
    assert calls.requests() == (CallRequest(name="g", arguments="{}", id="a"),)


def test_an_empty_old_form_is_no_call():
    calls = CallAssembly()
    calls.add_legacy(function("", ""))
    assert calls.requests() == ()


def test_a_copy_goes_its_own_way():
    calls = CallAssembly()
    calls.add(part("a", "f", "{", 0))
    twin = calls.copy()
    twin.add(part(None, None, "}", 0))
    assert calls.requests()[0].arguments == "{"
    assert twin.requests()[0].arguments == "{}"


def test_very_many_fragments_are_joined_once():
    calls = CallAssembly()
    for _ in range(200_000):
        calls.add(part(None, None, "x", 0))
    assert len(calls.requests()[0].arguments) == 200_000


def test_too_long_arguments_and_too_many_calls_are_refused():
    calls = CallAssembly()
    calls.add(part("a", "f", "x" * MAX_ARGUMENTS, 0))
    with pytest.raises(ModelProtocolError, match="'f' are longer than 1048576"):
        calls.add(part(None, None, "x", 0))
    for index in range(1, MAX_CALLS):
        calls.add(part(f"c{index}", "f", "{}", index))
    with pytest.raises(ModelProtocolError, match="more than 128"):
        calls.add(part("last", "f", "{}", MAX_CALLS))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ('{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ('{"a": 1.0e400}', '{"a": 1.0e400}'),
        ("[1]", "[1]"),
        ("false", "false"),
        ("null", ""),
        ('""', ""),
        ("", ""),
        ('"\\ud83d"', "\ud83d"),
    ],
)
def test_arguments_are_the_text_that_came_whatever_their_type(raw, text):
    assert FunctionPart(name="f", arguments=msgspec.Raw(raw)).text == text


@pytest.mark.parametrize("raw", [b'"\xff"', b'"a', b"\xff"])
def test_arguments_that_are_no_text_are_a_protocol_error(raw):
    with pytest.raises(ModelProtocolError, match="cannot be read"):
        assert FunctionPart(arguments=msgspec.Raw(raw)).text
