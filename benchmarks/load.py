"""One round over HTTP: wrk if it is installed, else the generator in this folder, always in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.serving import ROOT

SCRIPT = Path(__file__).with_name("keys.lua")
Mode = Literal["none", "new", "known", "same"]


@dataclass(frozen=True, slots=True)
class Round:
    requests: int
    seconds: float
    refused: int
    broken: int
    p50_us: float
    p99_us: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def generator(seconds: float) -> str:
    """wrk knows only whole seconds."""
    return "wrk" if shutil.which("wrk") and seconds >= 1 else "benchmarks.generator"


def new_prefix() -> str:
    """With twelve digits after it, a key looks like a UUID: some peers take nothing else."""
    return str(uuid.uuid4())[:23]


def key(prefix: str, number: int) -> str:
    return f"{prefix}-{number:012x}"


def fire(
    port: int, connections: int, seconds: float, mode: Mode, *, path: str = "/pay", prefix: str = "", known: int = 1
) -> Round:
    """Send requests on all connections for so long, one after the other on each."""
    words = [mode, path, prefix or new_prefix(), str(known)]
    if generator(seconds) == "wrk":
        place = ["-t1", f"-c{connections}", f"-d{round(seconds)}s", "-s", str(SCRIPT), f"http://127.0.0.1:{port}"]
        command = ["wrk", *place, "--", *words]
    else:
        command = [sys.executable, "-m", "benchmarks.generator", str(port), str(connections), str(seconds), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=seconds + 60)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr or done.stdout}")
    return Round(**json.loads(done.stdout.strip().splitlines()[-1]))
