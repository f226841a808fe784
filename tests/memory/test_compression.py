import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.memory.compression import MemoryPolicy, cover, due
from tests.memory.histories import summary


def ranges(summaries):
    return [(one.first, one.last) for one in summaries]


def covered(*pairs, confidence=1.0):
    return ranges(cover([summary(first, last, confidence=confidence) for first, last in pairs], 0.6))


@pytest.mark.parametrize(
    ("given_ranges", "taken"),
    [
        ([], []),
        ([(1, 6)], [(1, 6)]),
        ([(1, 6), (1, 12), (1, 18)], [(1, 18)]),
        ([(7, 12), (1, 6)], [(1, 6), (7, 12)]),
        ([(1, 6), (8, 12)], [(1, 6)]),
        ([(2, 6)], []),
        ([(1, 8), (5, 12), (6, 10)], [(1, 8), (5, 12)]),
        ([(1, 12), (3, 6), (13, 18), (13, 14)], [(1, 12), (13, 18)]),
    ],
)
def test_the_summaries_that_reach_furthest_without_a_gap_are_taken(given_ranges, taken):
    assert covered(*given_ranges) == taken


def test_a_summary_under_the_threshold_covers_nothing():
    assert covered((1, 6), confidence=0.59) == []
    assert covered((1, 6), confidence=0.6) == [(1, 6)]


def test_of_two_summaries_of_one_range_the_surer_is_taken():
    found = cover([summary(1, 6, "a", confidence=0.7), summary(1, 6, "b", confidence=0.9)], 0.6)
    assert found[0].facts == ("b",)


def converse(policy, upto, shown=None, confidence=1.0):
    """Every range that falls due in a conversation, by the turn after which it does."""
    summaries, made = [], {}
    for version in range(1, upto + 1):
        turns = due(policy, version, summaries, shown)
        if turns is not None:
            made[version] = (turns[0], turns[-1])
            summaries.append(summary(turns[0], turns[-1], confidence=confidence))
    return made


def test_full_is_never_compressed():
    assert converse(MemoryPolicy(strategy="full"), 100) == {}


def test_rolling_makes_one_growing_summary_anew_from_all_originals():
    assert converse(MemoryPolicy(turns=12), 30) == {12: (1, 6), 18: (1, 12), 24: (1, 18), 30: (1, 24)}


def test_a_rolling_summary_does_not_grow_for_ever():
    made = converse(MemoryPolicy(turns=12), 500)
    assert max(last - first + 1 for first, last in made.values()) == 48
    assert sum(last - first + 1 for first, last in made.values()) < 5 * 500


def test_layered_summaries_stay_and_the_next_begins_where_the_last_ended():
    made = converse(MemoryPolicy(strategy="layered", turns=12, layered_from=24), 36)
    assert made == {12: (1, 6), 18: (1, 12), 24: (13, 18), 30: (19, 24), 36: (25, 30)}


def test_a_context_that_has_room_for_fewer_turns_is_compressed_earlier():
    assert converse(MemoryPolicy(turns=12), 8, shown=4) == {4: (1, 2), 6: (1, 4), 8: (1, 6)}


def test_a_context_without_room_for_one_turn_is_compressed_after_each():
    assert converse(MemoryPolicy(), 3, shown=0) == {1: (1, 1), 2: (1, 2), 3: (1, 3)}


def test_what_is_summarised_already_is_not_due_again():
    assert due(MemoryPolicy(), 12, [summary(1, 6)]) is None
    assert due(MemoryPolicy(), 3, [summary(1, 3)], shown=0) is None


def test_a_summary_that_was_worth_too_little_is_due_again():
    assert due(MemoryPolicy(), 13, [summary(1, 6, confidence=0.2)]) == range(1, 8)


@given(st.integers(1, 20), st.integers(1, 120), st.sampled_from(["rolling", "layered"]), st.integers(1, 60))
def test_no_turn_ever_falls_between_window_and_summary(size, upto, strategy, layered_from):
    policy = MemoryPolicy(strategy=strategy, turns=size, layered_from=layered_from)
    summaries = []
    for version in range(1, upto + 1):
        covering = cover(summaries, policy.confidence)
        # What is due after one turn need only be there after the next.
        assert version - size <= (covering[-1].last if covering else 0)
        turns = due(policy, version, summaries)
        if turns is not None:
            assert 1 <= turns[0] <= turns[-1] <= version
            summaries.append(summary(turns[0], turns[-1]))
