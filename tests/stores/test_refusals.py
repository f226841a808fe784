from agentflow.stores import refusals
from agentflow.stores.base import OutcomeKey, SessionKey


def test_a_refusal_names_the_thing_and_what_to_do():
    texts = {
        str(refusals.does_not_follow("r", 3, 1)): ("'r'", "event 3", "cannot follow 1"),
        str(refusals.unknown_run("r")): ("'r'",),
        str(refusals.lease_lost("r", 7)): ("'r'", "lease 7", "stop"),
        str(refusals.busy(SessionKey("s"), "r", 8)): ("'s'", "'r'", "8 more wait", "send the message again"),
        str(refusals.outcome_pending(OutcomeKey("pay", "k"), "c")): ("'k'", "'pay'", "'c'", "look before"),
    }
    for text, parts in texts.items():
        assert all(part in text for part in parts)
