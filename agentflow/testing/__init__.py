"""What agentflow's own tests use, for the tests of those who build on it."""

from agentflow.models.scripted import ScriptedModel, call
from agentflow.testing import store_suite
from agentflow.testing.clock import DeadlockError, VirtualTimeLoop, run_virtual
from agentflow.testing.laws import LawError, assert_laws, check_laws
from agentflow.testing.leaks import LeakCheck, LeakError
from agentflow.testing.provider import (
    Delay,
    FakeProvider,
    HalfClose,
    RecordedRequest,
    Reply,
    Reset,
    Stall,
    recorded,
    status,
    text,
    tool_calls,
)
from agentflow.testing.stores import FailingLog

__all__ = [
    "DeadlockError",
    "Delay",
    "FailingLog",
    "FakeProvider",
    "HalfClose",
    "LawError",
    "LeakCheck",
    "LeakError",
    "RecordedRequest",
    "Reply",
    "Reset",
    "ScriptedModel",
    "Stall",
    "VirtualTimeLoop",
    "assert_laws",
    "call",
    "check_laws",
    "recorded",
    "run_virtual",
    "status",
    "store_suite",
    "text",
    "tool_calls",
]
