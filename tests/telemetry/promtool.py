"""The alert rules in examples/, asked by Prometheus' own tool what they would do with real scrapes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from servers.binaries import require
from servers.needing import needed

RULES = Path(__file__).parents[2] / "examples" / "prometheus" / "semel.rules.yml"
SCRAPED_BY = {"job": "shop", "instance": "10.0.0.7:8000"}
FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'


def check_alerts(folder: Path, scrapes: Sequence[str], firing: Mapping[int, set[str]]) -> None:
    """Fail unless exactly these alerts are firing after so many minutes. There is one scrape, a text, per minute."""
    tool = needed("promtool", lambda: require("promtool"))
    expected = [
        {
            "expr": FIRING,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
        }
        for minute, names in firing.items()
    ]
    tests = [{"interval": "1m", "input_series": series_of(scrapes), "promql_expr_test": expected}]
    file = folder / "alerts.test.yml"
    # JSON is YAML, too.
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(
        [str(tool), "test", "rules", str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def series_of(scrapes: Sequence[str]) -> list[dict[str, Any]]:
    """What Prometheus has after these scrapes: a value for each minute, or none where the series was not there."""
    found: dict[str, list[str]] = {}
    for minute, text in enumerate(scrapes):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f"{name}={json.dumps(value)}" for name, value in (sample.labels | SCRAPED_BY).items())
                values = found.setdefault(f"{sample.name}{{{labels}}}", ["_"] * len(scrapes))
                values[minute] = f"{sample.value:.6f}"
    return [{"series": series, "values": " ".join(values)} for series, values in found.items()]
