"""What is checked beyond what jsonschema checks, and how."""

import pytest

from agentflow.tools.validation import validator_of

SET = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize("items", [[1, 1], [1, 1.0], [{"x": 1, "y": 2}, {"y": 2.0, "x": 1}], [[1], [1.0]], ["a", "a"]])
def test_an_item_that_is_there_twice_is_found(items):
    assert not validator_of(SET).is_valid({"a": items})


@pytest.mark.parametrize("items", [[], [1, True], [0, False], ["1", 1], [None, "null"], [[1, 2], [2, 1]], "aa"])
def test_items_that_differ_are_all_unique(items):
    schema = {"type": "object", "properties": {"a": {"uniqueItems": True}, "b": {"uniqueItems": False}}}

    assert validator_of(schema).is_valid({"a": items, "b": [1, 1]})


def test_each_item_is_looked_at_once():
    class Looked(list):
        looks = 0

        def __iter__(self):
            type(self).looks += 1
            return super().__iter__()

        def __getitem__(self, index):
            raise AssertionError("compared by index")

    assert validator_of(SET).is_valid({"a": Looked(range(1_000))})
    assert Looked.looks == 1


def test_a_schema_that_names_its_dialect_is_checked_alike():
    schema = SET | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    validator = validator_of(schema)

    assert not validator.evolve(schema=validator.schema).is_valid({"a": [1, 1.0]})
    assert type(validator.evolve(schema=validator.schema)) is type(validator)
