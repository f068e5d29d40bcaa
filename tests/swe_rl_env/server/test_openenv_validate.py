"""OpenEnv's own validator: of the package, and of a running server."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import yaml
from openenv.cli.__main__ import app
from typer.testing import CliRunner

from swe_rl_env.server.toolbox import NAMES
from tests.swe_rl_env.server.kit import Served

PACKAGE = Path(str(files("swe_rl_env")))


def test_the_package_passes() -> None:
    done = CliRunner().invoke(app, ["validate", str(PACKAGE), "--level", "static", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert report["verdict"] == "pass", report
    assert report["manifest"]["capabilities"]["declared_tools"] == list(NAMES)


def test_beyond_the_manifest_nothing_fails() -> None:
    """Runtime checks build and start an image themselves; they are skipped without one, which is a warning."""
    done = CliRunner().invoke(app, ["validate", str(PACKAGE), "--skip-build", "--json"])
    assert done.exit_code == 0, done.output
    statuses = {result["check_id"]: result["status"] for result in json.loads(done.output)["results"]}
    assert {name for name, status in statuses.items() if status not in ("skip", "pass")} == set()


def test_a_running_server_passes(served: Served) -> None:
    done = CliRunner().invoke(app, ["validate", "--url", served.url, "--json", "--timeout", "30"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert (report["passed"], report["mode"]) == (True, "simulation"), report
    assert report["summary"]["failed_criteria"] == []


def test_the_manifest_names_what_is_there() -> None:
    manifest = yaml.safe_load((PACKAGE / "openenv.yaml").read_text())
    module, _, name = manifest["app"].partition(":")
    source = (PACKAGE / (module.replace(".", "/") + ".py")).read_text()
    assert f"\n{name} = " in source
    assert (PACKAGE / "server" / "Dockerfile").is_file()
