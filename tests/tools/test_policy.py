"""What may be declared about the calls of a tool, and what is refused at once."""

import functools

import pytest

from agentflow.errors import ConfigError
from agentflow.tools.policy import OPTIONS, Policy, check, options_of


async def later(arguments):
    raise AssertionError("never called")


class Later:
    async def __call__(self, arguments):
        raise AssertionError("never called")


def now(arguments):
    raise AssertionError("never called")


NO_FUNCTIONS = [later, Later(), functools.partial(later), 5]

REFUSED = {
    "timeout": [0, -1, float("nan"), float("inf"), 10**400, True, "5", None],
    "pool": ["", " ", None, 5],
    "is_error": [*NO_FUNCTIONS, True, "x"],
    "retries": [-1, 11, 1.0, True, "2", None],
    "approval": [*NO_FUNCTIONS, None, "yes", 0],
    "idempotent": [None, 1, "true", now],
    "idempotency_key": [*NO_FUNCTIONS, "order_id", "", [], [""], [5], b"ab", {"order_id"}, True],
    "sequential": [None, 1, "true"],
    "degraded": ["", " \n", 5, True, "x" * 2001],
}
TAKEN = {
    "timeout": [0.001, 5, 3600.0],
    "pool": ["default", "slow"],
    "is_error": [None, now, functools.partial(now), lambda value: None],
    "retries": [0, 10],
    "approval": [True, False, now, functools.partial(now)],
    "idempotent": [True, False],
    "idempotency_key": [None, ["order_id"], ("order_id", "sku"), now],
    "sequential": [True, False],
    "degraded": [None, "The weather is not known now.", "x" * 2000],
}


def rows(table):
    return [(name, value) for name, values in table.items() for value in values]


def test_every_option_stands_in_the_tables():
    assert set(REFUSED) == set(TAKEN) == set(OPTIONS)


@pytest.mark.parametrize(("name", "value"), rows(REFUSED))
def test_an_option_that_cannot_be_is_refused_with_what_was_expected(name, value):
    with pytest.raises(ConfigError) as caught:
        check(Policy(**{name: value}), "tool 'pay'")
    assert str(caught.value).startswith(f"tool 'pay': {name}={value!r}, expected ")


@pytest.mark.parametrize(("name", "value"), rows(TAKEN))
def test_an_option_that_can_be_is_taken(name, value):
    check(Policy(**{name: value}), "tool 'pay'")


def test_nothing_is_repeated_asked_for_or_run_alone_unless_it_is_declared():
    check(Policy(), "tool 'pay'")
    assert OPTIONS == {
        "timeout": 30.0,
        "pool": "default",
        "is_error": None,
        "retries": 2,
        "approval": False,
        "idempotent": False,
        "idempotency_key": None,
        "sequential": False,
        "degraded": None,
    }


def test_an_object_carries_what_it_has_and_the_defaults_for_the_rest():
    class Carrier:
        timeout = 5
        idempotent = True
        other = 1

    assert options_of(Carrier()) == OPTIONS | {"timeout": 5, "idempotent": True}


def test_two_policies_are_not_the_same_thing_for_saying_the_same():
    assert Policy() != Policy()
