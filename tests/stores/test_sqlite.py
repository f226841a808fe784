import pytest

from agentflow.stores.sqlite import SqliteStore
from agentflow.testing import store_suite


@pytest.mark.parametrize("check", store_suite.CHECKS, ids=store_suite.name_of)
async def test_contract(check, tmp_path):
    await check(lambda: SqliteStore(tmp_path / "store.db"))
