"""The README says what is so."""

import re
import tomllib
from pathlib import Path

import pytest

from agentflow.events import EventType
from agentflow.settings import Settings
from agentflow.state import diagram

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_state_diagram_is_the_table():
    (shown,) = re.findall(r"```mermaid\n(.*?)\n```", README, re.DOTALL)
    assert shown == diagram()


def test_the_first_two_sh_blocks_are_the_two_commands():
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert "agentflow chat" in blocks[0]
    assert "pytest" in blocks[1]


@pytest.mark.parametrize("event", EventType)
def test_every_event_is_explained(event):
    assert f"`{event}`" in README


def test_every_dependency_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = project["dependencies"]
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    names = {re.split(r"[^A-Za-z0-9_.-]", name)[0] for name in (*core, *extras)}
    table = README.partition("## Dependencies")[2].partition("## Development")[0]
    missing = {name for name in names if name not in table and not name.startswith("opentelemetry")}
    assert not missing


def test_every_module_of_the_map_exists():
    table = README.partition("### Map of the code")[2].partition("### Invariants")[0]
    paths = re.findall(r"^\| `([a-z_/]+(?:\.py)?/?)`", table, re.MULTILINE)
    assert paths
    assert [path for path in paths if not (ROOT / "agentflow" / path).exists()] == []


RECIPES = re.findall(r"^```python\n(.*?)^```$", README.partition("## Recipes")[2], re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", RECIPES, ids=range(len(RECIPES)))
def test_the_python_of_the_recipes_runs(code):
    exec(compile(code, "README.md", "exec"), {"__name__": "recipe"})


def test_every_configuration_section_is_told():
    table = README.partition("## Configuration")[2].partition("## The local model")[0]
    sections = {name for name in Settings.model_fields if name != "config"}
    assert {name for name in sections if f"`{name}." not in table} == set()
