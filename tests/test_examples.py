import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MAX_LINES = 60
SAYS = {
    "approval.py": [
        r"suspended after ['[success]\npaid back 40 for A']",
        "approve {'order_id': 'B', 'amount': 250} because 250 is more than 100 ?",
        "approve {'order_id': 'C', 'amount': 9000} because 9000 is more than 100 ?",
        "{'order_id': 'A', 'amount': 40} success",
        "{'order_id': 'B', 'amount': 250} success",
        "{'order_id': 'C', 'amount': 9000} rejected",
        "A and B are paid back; C was rejected: it is not our order.",
    ],
    "custom_model.py": [
        "You said 'Good morning'.",
        "You said 'Good night', and before that 'Good morning'.",
    ],
    "limits.py": [
        "1 Not now, please ask again later. the model was asked 1 times",
        "2 Not now, please ask again later. the model was asked 2 times",
        "3 Not now, please ask again later. the model was asked 2 times",
        "kim has to wait: True",
        "lee may ask: Not now, please ask again later.",
        "[('model:custom', 'open')]",
    ],
    "nested.py": [
        "desk -> billing {'input': 'Pay back A-17'}",
        "desk billing asks for refund {'order_id': 'A-17'}",
        "desk billing -> refund {'order_id': 'A-17'}",
        "desk billing <- refund 'A-17 is paid back'",
        "desk <- billing 'A-17 is paid back.'",
        "desk says 'You have your money back.'",
    ],
    "orders.py": [
        "told: the arguments of find_orders were corrected before the call: taken_apart, enum, date",
        'done: ["ORD2"]',
        "told: the arguments of refund were corrected before the call: name",
        "the service pays back ORD2",
        "done: ORD2 is paid back",
        "I have paid back ORD2.",
        "told: the arguments of refund were corrected before the call: name",
        "reused: ORD2 is paid back",
        "That was done before.",
    ],
    "questions.py": [
        "Which order do you mean? ['A-17', 'A-18'] -> A-18",
        "Where shall it go? [] -> To Berlin",
        "A-18 goes to Berlin.",
    ],
    "serving.py": [
        "approved: 202",
        "tool_complete [success]",
        "A-17 is paid back",
        "final You have your money back.",
    ],
    "streaming_tool.py": [
        "tool: {'done': 1, 'total': 3, 'message': 'a.py'}",
        "tool: {'done': 2, 'total': 3, 'message': 'b.py'}",
        "tool: {'done': 3, 'total': 3, 'message': 'c.py'}",
        "tool: {'lines': 126}",
        "The three files have 126 lines.",
    ],
    "subscribe.py": [
        r"tool: calculator '[success]\n14'",
        "end: final after 2 calls of the model",
        "answer: 2+3*4 is 14.",
    ],
    "weather.py": [
        'weather_by_city({\'city\': \'Berlin\'}) -> {"city":"Berlin","sky":"sunny","celsius":21}',
        "It is sunny in Berlin, at 21 degrees.",
    ],
}


def test_every_example_is_here():
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_is_short_and_says_what_it_promises(name, tmp_path):
    # With an empty environment there is no key: only what is scripted can answer.
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == SAYS[name]
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= MAX_LINES
