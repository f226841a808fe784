"""Grafana's dashboard and Prometheus's alerts for the metrics, as files that come with the package.

They are written for the names of `metrics`; panels of model calls that fail and of tokens need those of the conventions
v0.1.0.
"""

from importlib.resources import files
from pathlib import Path
from typing import Final

from agentflow.errors import ConfigError

FILES: Final = ("agentflow.json", "alerts.yaml")  # for Grafana, and for Prometheus


def text_of(name: str) -> str:
    """What stands in one of `FILES`."""
    return files("agentflow.observability").joinpath("grafana", name).read_text(encoding="utf-8")


def export(directory: Path) -> list[Path]:
    """Write the files to a directory, which is made if need be, over what is there of these names; where they are.

    Raises `ConfigError` if they cannot be written.
    """
    paths = [directory / name for name in FILES]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in paths:
            path.write_text(text_of(path.name), encoding="utf-8")
    except OSError as error:
        where = str(directory)
        raise ConfigError(f"the dashboards cannot be written to {where!r}: {error.strerror or error}") from error
    return paths
