"""The modules of a package, in order."""

import pytest

from agentflow.errors import ConfigError
from agentflow.tools.discovery import modules_of


def test_a_package_is_followed_by_all_its_modules_but_not_by_its_program():
    names = [module.__name__ for module in modules_of("agentflow.tools")]

    assert names[0] == "agentflow.tools"
    assert names[1:] == sorted(names[1:])
    assert "agentflow.tools.builtin" in names
    assert "json.__main__" not in [module.__name__ for module in modules_of("json")]


def test_a_module_is_alone():
    assert [module.__name__ for module in modules_of("json.decoder")] == ["json.decoder"]


def test_what_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="'no_such_package'"):
        list(modules_of("no_such_package"))
