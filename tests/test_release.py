"""How a release is made: the tag is the version, one job may publish, and the readme fits the package index."""

import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
readme_for_index = runpy.run_path(str(ROOT / "hatch_build.py"))["readme_for_index"]
LINKS = "[a](docs/a.md#b), [c](https://host/c), [d](#d) and `[e]`"


def test_one_job_may_publish_and_no_other_has_a_right() -> None:
    assert WORKFLOW["permissions"] == {}
    assert WORKFLOW["jobs"]["build"]["permissions"] == {"contents": "read"}
    publish = WORKFLOW["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"] == "release"
    assert publish["needs"] == "build"
    assert "secrets" not in str(WORKFLOW)


def test_what_is_published_was_tried_before() -> None:
    steps = WORKFLOW["jobs"]["build"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands == ['make dist TAG="$GITHUB_REF_NAME"', ".venv/bin/python -m pytest tests/test_wheel.py"]
    assert "upload-artifact" in steps[-1]["uses"]


def check_tag(tag: str, section: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`tools/tag` in a copy of the project whose changelog has this section."""
    (folder / "tools").mkdir()
    for name in ("pyproject.toml", "tools/tag"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {section}\n")
    return subprocess.run([sys.executable, folder / "tools" / "tag", tag], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("tag", "error"), [("v9.9.9", f"tag v{VERSION}"), (VERSION, f"tag v{VERSION}"), (f"v{VERSION}", "Unreleased")]
)
def test_a_wrong_tag_is_refused(tag: str, error: str, tmp_path: Path) -> None:
    done = check_tag(tag, "Unreleased", tmp_path)
    assert done.returncode == 1
    assert error in done.stderr


def test_the_version_with_a_section_in_the_changelog_is_released(tmp_path: Path) -> None:
    assert check_tag(f"v{VERSION}", f"{VERSION} (a day)", tmp_path).returncode == 0


def test_without_a_url_links_to_files_become_text() -> None:
    assert readme_for_index(LINKS, None) == "a, [c](https://host/c), [d](#d) and `[e]`"


def test_with_a_url_links_to_files_are_absolute() -> None:
    assert readme_for_index(LINKS, "https://host/us/") == (
        "[a](https://host/us/blob/main/docs/a.md#b), [c](https://host/c), [d](#d) and `[e]`"
    )
