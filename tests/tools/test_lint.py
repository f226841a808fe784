"""What an author is told about a tool that works but misleads."""

import pytest

from agentflow.tools.builtin import BUILTIN_TOOLS
from agentflow.tools.lint import lint, lint_all
from agentflow.tools.registry import ToolRegistry, tool


def lines(function, **options):
    (of,) = ToolRegistry([tool(**options)(function)])
    return lint(of)


def test_what_is_well_described_is_not_remarked_on():
    assert lint_all(ToolRegistry(BUILTIN_TOOLS)) == []


def test_missing_descriptions_are_told_with_what_to_do():
    def probe(order_id: str): ...

    first, second = lines(probe)
    assert first.startswith("probe: has no description; write a docstring")
    assert second.startswith("probe: parameter 'order_id' has no description")


def test_a_description_that_says_nothing_is_told():
    def probe(): ...

    assert lines(probe, description="Probes.") == [
        "probe: has a description of 7 characters; say what it does and when to use it"
    ]


@pytest.mark.parametrize("name", ["path", "file_path", "filePath", "file_name", "callback-url", "row_count"])
def test_a_name_that_contradicts_its_type_is_told(name):
    kind = "array" if name == "row_count" else "integer"
    properties = {name: {"type": kind, "description": "Something."}}

    def probe(**arguments):
        """Do something with it."""

    (line,) = lines(probe, parameters={"type": "object", "properties": properties})
    assert line.startswith(f"probe: parameter {name!r} is declared {kind}, which a")


@pytest.mark.parametrize(("name", "kind"), [("profile", "integer"), ("path", "string"), ("pathology", "integer")])
def test_other_names_contradict_nothing(name, kind):
    def probe(**arguments):
        """Do something with it."""

    schema = {"type": "object", "properties": {name: {"type": kind, "description": "Something."}}}
    assert lines(probe, parameters=schema) == []


def test_a_default_that_would_be_refused_is_told():
    def probe(rows: int = "many"):
        """Do something with rows.

        Args:
            rows: How many.
        """

    assert lines(probe) == ["probe: parameter 'rows' has the default 'many', which does not fit its own schema"]


def test_an_override_that_lost_its_decorator_is_told_once():
    class Base:
        @tool
        def today(self) -> str:
            """Say today's weather."""
            return ""

        @tool
        def tomorrow(self) -> str:
            """Say tomorrow's weather."""
            return ""

    class Quiet(Base):
        def today(self) -> str:
            return "quiet"

    (line,) = lint_all(ToolRegistry([Quiet()]))
    assert "Quiet.today overrides a tool but has no @tool" in line
