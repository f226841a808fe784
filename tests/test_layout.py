"""The shape of the tree: what import-linter and ruff do not see."""

import inspect
from pathlib import Path

import pytest

import agentflow

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "agentflow").rglob("*.py"))
MAX_LINES = 450


def ids(paths):
    return [str(path) for path in paths]


@pytest.mark.parametrize("module", MODULES, ids=ids(MODULES))
def test_a_module_stays_short(module):
    lines = len((ROOT / module).read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{module} has {lines} lines: give one of its jobs a module of its own"


@pytest.mark.parametrize("module", [m for m in MODULES if not m.name.startswith("__")], ids=str)
def test_a_module_has_its_test_module(module):
    expected = Path("tests", *module.parts[1:-1], f"test_{module.name}")
    assert (ROOT / expected).is_file(), f"{module} is tested in {expected}, which does not exist"


def test_the_public_names_are_sorted_and_are_all_there_is():
    public = {
        name for name, value in vars(agentflow).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert agentflow.__all__ == sorted(agentflow.__all__)
    assert set(agentflow.__all__) - {"__version__"} == public
