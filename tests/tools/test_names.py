"""Names that are the same but for how they are written."""

import pytest

from agentflow.tools.names import match, match_typo, same


@pytest.mark.parametrize(
    "name", ["order_id", "orderId", "OrderID", "ORDER-ID", "order id", " order_id ", "ｏｒｄｅｒ＿ｉｄ", "orderid"]
)
def test_case_separators_and_width_do_not_matter(name):
    assert match(name, ["order", "order_id", "id"]) == "order_id"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("line_1_2", "line_12"),
        ("x²", "x2"),
        ("①", "1"),
        ("-1", "1"),
        ("c++", "c"),
        ("c#", "c"),
        ("_", ""),
    ],
)
def test_what_may_be_another_thing_is_not_the_same(a, b):
    assert same(a) != same(b)


def test_a_name_that_fits_two_fits_none():
    assert match("orderid", ["order_id", "orderId"]) is None
    assert match("customer", ["order_id"]) is None


@pytest.mark.parametrize("name", ["oder_id", "orderr_id", "ordre_id", "arder_id", "order_ids"])
def test_one_letter_wrong_is_a_typo(name):
    assert match_typo(name, ["order_id", "limit"]) == "order_id"


@pytest.mark.parametrize("name", ["order", "border_ids", "order_id2", "id", "redro_id", ""])
def test_more_than_one_letter_or_a_digit_is_no_typo(name):
    assert match_typo(name, ["order_id", "to"]) is None


def test_short_and_numbered_names_and_those_near_to_two_have_no_typos():
    assert match_typo("do", ["to"]) is None
    assert match_typo("line1", ["line2"]) is None
    assert match_typo("stack", ["stock", "stick"]) is None
