"""The files in examples/deploy: each command is one that semel has, and each setting fits the others."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from semel.cli.group import semel

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "deploy"
UNITS = sorted([*FOLDER.glob("*.service"), *FOLDER.glob("*.timer")])
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
LONGER_S = 20
"""How much more than `--drain` a gateway needs to stop."""


def check_command(words: list[str]) -> None:
    """Every option is one of the command."""
    command = semel.get_command(click.Context(semel), words[0])
    assert command is not None, words[0]
    known = {name for param in command.params for name in param.opts}
    assert {word for word in words if word.startswith("--")} <= known


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for file in MANIFESTS:
        for document in yaml.safe_load_all(file.read_text()):
            if document["kind"] in ("Deployment", "CronJob"):
                spec = document["spec"]["jobTemplate"]["spec"] if document["kind"] == "CronJob" else document["spec"]
                pod = spec["template"]["spec"]
                yield from ((document["metadata"]["name"], pod, each) for each in pod["containers"])


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: unit.name)
def test_units_run_commands_that_exist(unit: Path) -> None:
    [line] = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    program, *words = line.split()
    assert program.endswith("/semel")
    check_command(words)


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    copies = []
    for unit in UNITS:
        copy = tmp_path / unit.name
        copy.write_text(
            unit.read_text().replace("/opt/semel/bin/semel", "/bin/true").replace("User=semel", "User=root")
        )
        copies.append(str(copy))
    done = subprocess.run([program, "verify", "--man=no", *copies], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "semel-" in line]
    assert said == []


def test_manifests_fit_together() -> None:
    found = list(containers())
    assert [name for name, _, _ in found] == ["semel-gateway", "semel-relay", "semel-purge"]
    for name, pod, container in found:
        check_command(container["args"])
        if name == "semel-gateway":
            drain_s = int(container["args"][container["args"].index("--drain") + 1])
            assert pod["terminationGracePeriodSeconds"] >= drain_s + LONGER_S
            ports = {port["name"] for port in container["ports"]}
            probes = {container[kind]["httpGet"]["path"] for kind in ("livenessProbe", "readinessProbe")}
            assert probes == {"/-/healthz", "/-/readyz"}
            assert {container[kind]["httpGet"]["port"] for kind in ("livenessProbe", "readinessProbe")} <= ports


def test_the_image_has_extras_that_exist() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    [extras] = re.findall(r"semel\[([\w,]+)\]", (FOLDER / "Containerfile").read_text())
    for extra in extras.split(","):
        assert f"\n{extra} = [" in project


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    assert [file.name for file in sorted(FOLDER.iterdir()) if f"`{file.name}`" not in page] == []
