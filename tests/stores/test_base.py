"""The contracts are met by what calls itself a store, and their data goes over the wire."""

import inspect

import msgspec
import pytest

from agentflow.messages import Message
from agentflow.stores.base import (
    EventLog,
    FactStore,
    OutcomeIndex,
    RunStore,
    Session,
    SessionKey,
    SessionStore,
    Store,
    Summary,
    Turn,
)
from agentflow.stores.in_memory import InMemoryStore
from agentflow.testing import FailingLog


@pytest.mark.parametrize("cls", [InMemoryStore, FailingLog])
def test_a_store_has_every_method_of_its_protocols_with_the_same_parameters(cls):
    for protocol in (EventLog, RunStore, SessionStore, OutcomeIndex, FactStore, Store):
        for name, method in inspect.getmembers(protocol, inspect.isfunction):
            if not name.startswith("_"):
                ours = getattr(cls, name)
                assert list(inspect.signature(ours).parameters) == list(inspect.signature(method).parameters)
                assert inspect.iscoroutinefunction(ours) is inspect.iscoroutinefunction(method)


def test_sessions_of_two_users_are_two():
    assert SessionKey("s", "u1") != SessionKey("s", "u2")
    assert {SessionKey("s"): 1}[SessionKey("s", None)] == 1


def test_a_session_can_be_encoded_and_read_back():
    turn = Turn(run_id="r", outcome="final", messages=(Message(role="user", content="hi"),))
    summary = Summary(first=1, last=1, text="hi", confidence=0.5)
    session = Session(key=SessionKey("s", "u"), version=1, turns=(turn,), summaries=(summary,))
    assert msgspec.json.decode(msgspec.json.encode(session), type=Session) == session
