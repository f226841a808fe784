"""The contract suite of stores: what every backend must do, as checks that take a factory and know no backend.

It needs no test framework. Each check raises `AssertionError` with what was expected and what was found:

    @pytest.mark.parametrize("check", store_suite.CHECKS, ids=store_suite.name_of)
    async def test_my_store_keeps_the_contract(check, tmp_path):
        await check(lambda: MyStore(tmp_path / "file"))

The factory is called more than once in a check, also after what it gave before was closed. It must give stores on
the same data, as two processes would have them, or the same store again if the data cannot be shared; the data must
be fresh for every check. Lapsing leases are waited for in real time, for a fraction of a second.
"""

from agentflow.testing.store_letter_checks import LETTER_CHECKS
from agentflow.testing.store_log_checks import LOG_CHECKS
from agentflow.testing.store_probe import Check, Factory
from agentflow.testing.store_session_checks import SESSION_CHECKS

__all__ = ["CHECKS", "Check", "Factory", "name_of"]

CHECKS: tuple[Check, ...] = (*LOG_CHECKS, *LETTER_CHECKS, *SESSION_CHECKS)


def name_of(check: Check) -> str:
    """The check's name, which says what it is that a store must do."""
    return getattr(check, "__name__", repr(check))
