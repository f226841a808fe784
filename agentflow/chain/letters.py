"""The letters to one run: read when there may be some, handed on, and deleted once the log has what came of them.

What they ask for is judged by who gets them. When the process dies in between, the next one hands them on again, and
what was decided already does not count twice.
"""

import logging
from collections.abc import Awaitable, Callable

from agentflow.stores.base import Letter, RunStore
from agentflow.streams import TaskOwner

logger = logging.getLogger(__name__)


class Letters:
    """Hands each letter to `hand_on`, in the order they were sent.

    `settled` waits until the log has what has come of those that were handed on, and tells whether it has. There is a
    task, one of `tasks`, only while letters are seen to.
    """

    def __init__(
        self,
        store: RunStore,
        run_id: str,
        tasks: TaskOwner,
        *,
        hand_on: Callable[[Letter], None],
        settled: Callable[[], Awaitable[bool]],
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._tasks = tasks
        self._hand_on = hand_on
        self._settled = settled
        self._handed: set[str] = set()  # the ids of those that lie in the inbox still
        self._looking = False
        self._again = False

    def look(self) -> None:
        """There may be letters: see to them, beside whatever goes on."""
        self._again = True
        if not self._looking:
            self._looking = True
            self._tasks.spawn(self._look(), name=f"agentflow letters to {self._run_id}")

    async def read(self) -> None:
        """Hand on what was not yet, and leave it in the inbox. Raises `StoreError`."""
        for letter in await self._store.list_letters(self._run_id):
            if letter.id not in self._handed:
                self._handed.add(letter.id)
                self._hand_on(letter)

    async def _look(self) -> None:
        try:
            while self._again:
                self._again = False
                await self.read()
                handed = tuple(self._handed)
                if handed and await self._settled():
                    await self._store.delete_letters(self._run_id, handed)
                    self._handed.difference_update(handed)
        except Exception as error:  # noqa: BLE001  a store of the user's may raise anything, and is asked again
            logger.warning("letters to run %s could not be seen to: %r", self._run_id, error)
        finally:
            self._looking = False
