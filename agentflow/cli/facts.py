"""What `agentflow facts` does: shows, corrects and deletes what is known of a user.

How facts are found and which supersedes which is in `memory.facts`.
"""

import uuid
from datetime import UTC, datetime

import msgspec

from agentflow.cli.output import print_lines, stdout_alone
from agentflow.cli.screen import columns
from agentflow.errors import RequestError
from agentflow.memory import facts
from agentflow.stores.base import Fact, Store


async def show_all(store: Store, user: str, *, as_json: bool) -> int:
    """The user's facts that hold, the oldest first, a line each; at most `MAX_FACTS`."""
    known = await store.list_facts(user)
    if as_json:
        write = stdout_alone()
        for fact in known:
            write(msgspec.json.encode(fact))
    else:
        print_lines(columns([(fact.id, f"{fact.confidence:.2f}", fact.subject or "-", fact.text) for fact in known]))
    return 0


async def correct(store: Store, user: str, fact_id: str, text: str) -> int:
    """Put `text` in a fact's place. Raises `RequestError` for an unknown fact and for a text without words."""
    text = " ".join(text.split())
    if not text:
        raise RequestError("there is no text: say what is right instead, or delete the fact")
    fact = await _found(store, user, fact_id)
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    right, old = facts.correct(fact, text, str(uuid.uuid4()), now)
    await store.put_facts([right, old])
    print_lines([f"fact {right.id} has taken the place of {old.id}"])
    return 0


async def delete(store: Store, user: str, fact_id: str) -> int:
    """Delete a fact. Raises `RequestError` for an unknown one."""
    await _found(store, user, fact_id)
    await store.delete_fact(user, fact_id)
    print_lines([f"deleted fact {fact_id}"])
    return 0


async def _found(store: Store, user: str, fact_id: str) -> Fact:
    for fact in await store.list_facts(user):
        if fact.id == fact_id:
            return fact
    raise RequestError(f"no fact {fact_id!r} of user {user!r}: `agentflow facts --user {user}` shows which there are")
