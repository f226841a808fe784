import itertools

import pytest

from agentflow.events import TERMINAL_TYPES, EventType, State
from agentflow.state import TABLE, TERMINAL_STATES, diagram


def test_every_state_has_its_row_and_ends_allow_nothing():
    assert set(TABLE) == set(State)
    assert {state for state in State if not TABLE[state]} == TERMINAL_STATES


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL_STATES))
def test_every_open_state_can_end_and_be_warned(state):
    row = TABLE[state]
    assert row[EventType.FAILED] == {State.FAILED}
    assert row[EventType.CANCELLED] == {State.CANCELLED}
    assert row[EventType.WARNING] == {state}


def test_only_terminal_events_lead_to_an_end_and_only_thinking_to_an_answer():
    for state, row in TABLE.items():
        for event, targets in row.items():
            assert bool(targets & TERMINAL_STATES) == (event in TERMINAL_TYPES)
            assert State.COMPLETED not in targets or state is State.THINKING


def test_every_state_can_be_reached():
    reached, todo = {State.IDLE}, [State.IDLE]
    while todo:
        for target in set().union(*TABLE[todo.pop()].values()) - reached:
            reached.add(target)
            todo.append(target)
    assert reached == set(State)


def test_the_diagram_has_one_edge_for_each_pair_of_states():
    edges = {
        (source, target)
        for source, row in TABLE.items()
        for target in itertools.chain.from_iterable(row.values())
        if source is not target
    }
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    for source, target in edges:
        assert sum(line.startswith(f"    {source} --> {target}: ") for line in lines) == 1
    assert len(lines) == 2 + len(edges) + len(TERMINAL_STATES)
