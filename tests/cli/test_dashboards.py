from agentflow.cli import main


def test_the_files_are_written_where_one_says(tmp_path, capsys):
    assert main(["dashboards", "export", str(tmp_path / "grafana")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {tmp_path / 'grafana' / 'agentflow.json'}",
        f"wrote {tmp_path / 'grafana' / 'alerts.yaml'}",
    ]


def test_where_they_cannot_be_written_is_one_line_and_a_usage_error(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["dashboards", "export", str(tmp_path / "file")]) == 2
    assert "dashboards cannot be written" in capsys.readouterr().err
