"""`agentflow dashboards`: what Grafana and Prometheus need to show the metrics of a server."""

from pathlib import Path
from typing import Annotated

import typer

from agentflow.cli.output import print_lines
from agentflow.observability.dashboards import export as export_files

dashboards_app = typer.Typer(no_args_is_help=True, help="Dashboard for Grafana, and alerts for Prometheus.")


@dashboards_app.callback()
def _dashboards() -> None:
    """Dashboard for Grafana, and alerts for Prometheus."""


@dashboards_app.command("export")
def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; it is made if need be.")] = Path(),
) -> int:
    """Write the dashboard (agentflow.json) and the alerts (alerts.yaml), over those of before."""
    print_lines([f"wrote {path}" for path in export_files(directory)])
    return 0
