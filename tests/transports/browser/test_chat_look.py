"""Pictures of the chat page in its states, for people to look at: pytest --basetemp says where they are left.

What is asserted is what a picture shows at once: the frame stands still, and nothing lies outside it.
"""

import pytest
from playwright.async_api import expect

from agentflow import Agent, tool
from agentflow.models.base import ModelChunk
from agentflow.testing import call
from tests.transports.browser.visits import answer, say, visiting
from tests.transports.paused import WAIT, Paused
from tests.transports.served import served

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER = """包裹在 **上海青浦** 仓库。Two warehouses have them:

| store | pairs |
|---|---|
| 松江 | 3 |
| Jiading | 1 |

```python
def find(order: str) -> str:
    return f"parcel of {order}"
```

1. One goes on *Tuesday*.
2. `SF1439902218` is [late](https://example.org/late).
"""


@tool(approval=True)
def refund(order: str, amount: float, note: str = "") -> str:
    """Refund an order."""
    return f"refunded {amount} of {order}"


@tool
async def stock(near: str):
    """Count stock."""
    yield {"done": 214, "total": 340, "message": "松江 2: 3 pairs"}
    yield "three pairs"


TURNS = (
    [ModelChunk(reasoning="Where may it be?"), "I look. ", call("stock", near="Shanghai")],
    ["Three ", WAIT, "pairs.\n\n" + ANSWER],
    [call("refund", order="ORD2025010001", amount=649.0, note="不合脚")],
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desk", "phone"])
async def test_the_frame_stands_still_through_all_states(browser, tmp_path, scheme, size):
    model = Paused(*TURNS)
    agent = Agent(name="shop", model=model, tools=[stock, refund])
    async with served(agent) as here, visiting(browser, here, color_scheme=scheme, size=size) as page:
        frame = {}

        async def picture(name):
            await page.screenshot(path=tmp_path / f"{name}-{size}-{scheme}.png")
            frame[name] = await page.get_by_test_id("status").bounding_box()

        await expect(page.get_by_test_id("status")).to_contain_text("Ready")
        await picture("1-empty")
        await say(page, "Order ORD2025010001 没有到。 Where is it?")
        await model.standing()
        await expect(answer(page)).to_contain_text("Three")
        await picture("2-writing")
        model.go()
        await expect(page.get_by_test_id("closing-line")).to_be_visible()
        await picture("3-answered")
        await say(page, "Refund it.")
        await expect(page.get_by_test_id("approval")).to_be_visible()
        await picture("4-approval")
        assert len({(box["x"], box["y"], box["height"]) for box in frame.values()}) == 1, frame
        assert await page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
