import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MAX_LINES = 60
SAYS = {
    "class_tools.py": ['{"order_id":"ORD2025010001","status":"shipped"}', "Order ORD2025010001 has been shipped."],
    "custom_model.py": ["You said 'Good night', and before that 'Good morning'."],
    "streaming_tool.py": ["tool: {'done': 2, 'total': 3, 'message': 'b.py'}", "tool: {'lines': 126}"],
    "subscribe.py": [
        r"tool: calculator '[success]\n14'",
        "answer: 2+3*4 is 14.",
        "end: final after 2 calls of the model",
    ],
    "weather.py": ["It is sunny in Berlin, at 21 degrees."],
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
    assert set(SAYS[name]) <= set(done.stdout.splitlines())
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= MAX_LINES
