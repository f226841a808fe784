import sys

import pytest

from agentflow.chain.tracing import installed
from agentflow.config import build_agent, known_secrets, load_tools, trace_runs
from agentflow.errors import ConfigError
from agentflow.settings import Settings
from agentflow.tools.builtin import calculator, current_time

SHOP = """
from agentflow.tools import Tool, ToolRegistry, calculator, tool

@tool
def order(order_id: str) -> str:
    return "shipped"

def helper() -> None: ...

class Stock:
    @tool
    def count(self, item: str) -> int:
        return 3

def ready() -> str:
    return "yes"

made = next(iter(ToolRegistry([ready])))
TOOLS = [Stock(), order]
"""


@pytest.fixture
def module(monkeypatch, tmp_path):
    """Write a module into the current directory; gives its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # so that what `load_tools` adds is there already, and goes with the test

    def write(name, source):
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        return name

    return write


def names(agent):
    return [tool.name for tool in agent.tools]


def test_a_module_offers_what_it_marks_makes_and_lists(module):
    agent = build_agent(Settings(), tools=[module("shop_of_config_test", SHOP)])
    assert names(agent) == ["calculator", "order", "ready", "count"]


def test_several_modules_add_up_and_one_object_counts_once(module):
    name = module("time_of_config_test", "from agentflow.tools import current_time")
    assert load_tools([name, "agentflow.tools.builtin"]) == [current_time, calculator]


def test_none_offers_nothing():
    assert load_tools(["none"]) == []


def test_without_names_the_settings_count_then_the_built_in_tools(module):
    name = module("configured_tools", "from agentflow.tools import current_time")
    assert names(build_agent(Settings(tools={"packages": [name]}))) == ["current_time"]
    assert names(build_agent(Settings())) == ["calculator", "current_time"]


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("no_tools", "x = 1", "has no tools: mark functions with @tool"),
        ("no_list", "TOOLS = 3", "make it a list"),
        ("no_python", "x = 1\ndef broken(:", "no_python.py:2 failed with SyntaxError"),
        ("raises", "1 / 0", "raises.py:1 failed with ZeroDivisionError: division by zero"),
        ("exits", "import sys; sys.exit('no')", "SystemExit: no"),
        (
            "needs_more",
            "x = 1\nimport no_such_module",
            "needs_more.py:2 failed with ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("goes_deeper", "import json\njson.loads('{')", "JSONDecodeError"),
    ],
)
def test_a_module_that_cannot_serve_is_named(module, name, source, words):
    module(name, source)
    with pytest.raises(ConfigError) as caught:
        load_tools([name])
    assert repr(name) in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "no such module", "no_such_package.tools", "agentflow.no_such_module"])
def test_a_name_that_is_no_module_is_named(name):
    with pytest.raises(ConfigError, match=rf"{name!r} cannot be imported \(.*give the dotted name"):
        load_tools([name])


def test_a_package_that_lacks_what_it_imports_is_not_taken_for_missing_itself(module, tmp_path):
    (tmp_path / "half").mkdir()
    module("half/__init__", "import half.other")
    with pytest.raises(ConfigError, match=r"'half.tools' cannot be imported: .*__init__.py:1 failed with Mod"):
        load_tools(["half.tools"])


@pytest.mark.parametrize(
    ("name", "right"),
    [("weather.py", "weather"), ("./weather.py", "weather"), ("shop/tools.py", "shop.tools"), ("shop/tools", "shop.t")],
)
def test_a_file_is_not_run_under_a_wrong_name(module, name, right):
    module("weather", "raise AssertionError('run')")
    with pytest.raises(ConfigError, match=f"name it as a module: --tools {right}"):
        load_tools([name])


def test_names_may_stand_together_with_commas(module):
    name = module("together_of_config_test", "from agentflow.tools import current_time")
    assert load_tools([f"{name}, agentflow.tools.builtin", "none"]) == [current_time, calculator]


def test_runs_are_traced_only_where_the_settings_say_so(monkeypatch):
    trace_runs(Settings())()
    assert installed() is None
    monkeypatch.setitem(sys.modules, "agentflow.observability.instrumentor", None)  # as where it cannot be imported
    trace_runs(Settings())
    with pytest.raises(ConfigError, match=r"agentflow-rx\[otel\]"):
        trace_runs(Settings(telemetry={"traces": True}))


def test_all_keys_and_passwords_that_are_configured_are_known(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    settings = Settings(
        providers={"mine": {"base_url": "http://127.0.0.1:1/v1", "api_key": "key-of-mine"}},
        memory={"store": "redis", "url": "redis://user:password-of-redis@127.0.0.1:6379/0"},
    )
    assert {"key-of-openai", "key-of-mine", "password-of-redis"} <= set(known_secrets(settings))
    assert None not in known_secrets(Settings())
