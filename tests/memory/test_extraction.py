import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.memory.extraction import MAX_LINE, findings, names, one_line, sentences, values, words
from tests.memory.histories import call, result, says, user


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,250.00 or 1250 or 1'250", {"1250"}),
        ("3.50, 3,5", {"3.5"}),
        ("10.0 and 10", {"10"}),
        ("007", {"7"}),
        ("0 and 0.0", {"0"}),
        ("on 2025-01-05 at 10:30", {"2025-01-05", "10:30"}),
        ("Order ORD-77, ticket t_5", {"ord-77", "t_5"}),
        ("mail ana1@example.org", {"ana1@example.org"}),
        ("订单ORD123共45.90元", {"ord123", "45.9"}),
        ("４２", {"42"}),
        ("no number at all", set()),
    ],
)
def test_values_have_one_spelling(text, expected):
    assert values(text) == expected


def test_a_name_is_a_capital_where_no_sentence_begins():
    assert names("Yesterday Bob met Ana. Carl stayed. I saw him in OSLO") == {"bob", "ana", "oslo"}


def test_sentences_end_with_their_marks_and_lines():
    assert sentences("One. Two! Three?\n\nFour  5.5\n我来了。你好！") == [
        "One.", "Two!", "Three?", "Four 5.5", "我来了。", "你好！",
    ]  # fmt: skip


def test_lines_are_cut_with_a_mark():
    assert one_line("a  b\nc") == "a b c"
    assert len(one_line("x" * 1000)) == MAX_LINE
    assert one_line("x" * 1000).endswith("x...")
    assert one_line("12345 " * 100).endswith("12345...")


@given(st.text(max_size=400))
def test_any_text_is_taken(text):
    assert all(len(sentence) <= MAX_LINE for sentence in sentences(text))
    values(text), names(text), words(text)
    list(findings((user(text), says(text, call("a", text)), result("a", "[success]\n" + text))))


def stated(text):
    return [(finding.subject, finding.text, finding.pinned) for finding in findings((user(text),))]


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("My name is Ana.", "name"),
        ("Hi, call me Bo", "name"),
        ("By the way my dog's name is Bruno!", "dog's name"),
        ("Please note that our new delivery address is 5 High Street.", "delivery address"),
        ("I live in Oslo.", "home"),
        ("I've just moved to Bergen.", "home"),
        ("I now work at the harbour.", "work"),
        ("I’m allergic to nuts.", ""),
        ("I prefer e-mail.", ""),
        ("Never call before noon.", ""),
        ("Ich heiße Jörg.", "name"),
        ("Meine Adresse lautet Am Ring 5.", "adresse"),
        ("我叫王芳。", "name"),
        ("我住在上海。", "home"),
        ("我的电话是12345。", "电话"),
        ("我对花生过敏。", ""),
    ],
)
def test_what_people_say_of_themselves_is_pinned_with_what_it_is_about(text, subject):
    assert stated(text) == [(subject, text, True)]


@pytest.mark.parametrize("text", ["Order ORD-77 came broken.", "The lamp was a gift for Maria."])
def test_other_words_of_a_user_are_kept_where_they_hold_a_value_or_a_name(text):
    assert stated(text) == [("", text, False)]


@pytest.mark.parametrize(
    "text",
    [
        "Where is order 5?",
        "我的订单5在哪里？",
        "hello there",
        "I need your help.",
        "I'm looking for it.",
        "thanks a lot",
    ],
)
def test_questions_and_small_talk_are_passed_over(text):
    assert stated(text) == []


def test_a_result_is_one_line_with_its_call():
    messages = (
        user(),
        says("", call("a", '{"order_id": "ORD-77"}', "order")),
        result("a", '[success]\n{"status": "shipped", "items": [{"name": "lamp"}], "tags": ["a", "b"], "note": null}'),
    )
    (found,) = findings(messages)
    assert found.subject == "order(order_id=ORD-77)"
    assert found.text == "order(order_id=ORD-77): status=shipped, items.name=lamp, tags=a b"


def test_what_tools_return_is_kept_without_long_texts_links_and_flags():
    body = '{"id": 5, "text": "' + "long " * 20 + '", "link": "https://example.org", "gift": true, "none": null}'
    assert list(findings((says("", call("a", '{"id": 5}')), result("a", "[success]\n" + body)))) == []


def test_what_most_results_say_alike_is_about_none_of_them():
    calls = [(says("", call("x", f'{{"order": {n}}}')), f'{{"eta": {n}, "shop": "Oslo"}}') for n in range(4)]
    messages = [message for asks, told in calls for message in (asks, result("x", f"[success]\n{told}"))]
    assert [found.text for found in findings(messages)] == [f"look(order={n}): eta={n}" for n in range(4)]
    assert next(findings(messages[:6])).text == "look(order=0): eta=0, shop=Oslo"


def test_what_one_call_returns_again_and_again_is_kept():
    polled = (says("", call("x", '{"order": 1}')), result("x", '[success]\n{"status": "packed"}')) * 6
    assert {found.text for found in findings(polled)} == {"look(order=1): status=packed"}


def test_a_failed_result_and_one_without_a_call_are_no_findings():
    messages = (user(), says("", call("a")), result("a", "[error: timeout]\n500"), result("b", "[success]\n5"))
    assert list(findings(messages)) == []


def test_what_the_assistant_says_is_kept_where_no_result_says_it():
    messages = (
        user(),
        says("", call("a")),
        result("a", "[success]\n45.90 EUR"),
        says("It costs 45.90 EUR. I've opened ticket T-5. It will be there on 2025-03-04. Is that fine with order 7?"),
    )
    assert [(finding.kind, finding.text) for finding in findings(messages)][1:] == [
        ("decided", "I've opened ticket T-5."),
        ("answered", "It will be there on 2025-03-04."),
    ]


def test_hostile_text_is_read_in_one_go():
    for text in ("and " * 50_000, "my " + "a" * 100_000, "-._" * 50_000, "1," * 100_000, "." * 100_000, "[" * 100_000):
        list(findings((user(text), says(text, call("a", text)), result("a", "[success]\n" + text))))


def test_what_is_nested_too_deep_in_a_result_is_passed_over():
    deep = '{"a": ' * 700 + "5" + "}" * 700
    assert list(findings((says("", call("a")), result("a", f"[success]\n{deep}")))) == []
