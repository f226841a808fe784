"""Logs recorded by earlier versions fold to the state they were recorded with, for ever."""

import importlib.util
import json
from pathlib import Path

import pytest

from agentflow.events import TERMINAL_TYPES, EventType, decode, encode
from agentflow.testing import check_laws

DATA = Path(__file__).parent / "data"
LOGS = sorted(DATA.glob("*.ndjson"))

_spec = importlib.util.spec_from_file_location("make_golden", DATA / "make_golden.py")
make_golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_golden)


def read(path):
    return [decode(line) for line in path.read_bytes().splitlines()]


def known(now, then):
    """What is there now, without fields that were not known then: a state may learn more, but forget nothing."""
    if isinstance(now, dict) and isinstance(then, dict):
        return {key: known(value, then[key]) for key, value in now.items() if key in then}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [known(*pair) for pair in zip(now, then, strict=True)]
    return now


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_log_folds_to_its_state(path):
    then = json.loads(path.with_suffix(".json").read_text("utf-8"))
    assert known(make_golden.fold(read(path)), then) == then


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_log_is_lawful_and_is_encoded_as_it_was(path):
    log = read(path)
    assert check_laws(log, ended=log[-1].type in TERMINAL_TYPES) == []
    assert b"".join(encode(event) + b"\n" for event in log) == path.read_bytes()


def test_the_golden_logs_are_those_that_can_be_made_and_have_every_event_type():
    assert {path.stem for path in LOGS} == {*make_golden.RUNS, *make_golden.BY_HAND}
    assert {event.type for path in LOGS for event in read(path)} == set(EventType) - {EventType.GAP}
