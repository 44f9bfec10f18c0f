"""The demo's processes: how they start, how they stop, and that none is left behind."""

import contextlib
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from demo.running import COMMAND, PATIENCE_S, Demo, Watcher
from semel.cli import demo as command
from semel.demo.supervisor import PortBusy, listen
from servers.process import wait_until_dead


@contextlib.contextmanager
def taken() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_at_once_and_leaves_nothing(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with Demo() as demo, closing(Watcher(demo, "somebody")) as watcher:
        watcher.until("begin")  # a connection that never ends by itself
        worker, parent = demo.worker(), demo.process
        assert list(tmp_path.glob("semel-demo-*"))
        parent.send_signal(number)
        assert parent.wait(PATIENCE_S) == 0
        assert not worker.is_running()
        assert "Stopped." in demo.log.read_text()
        assert not re.search("Traceback|Warning", demo.log.read_text())
        assert not list(tmp_path.glob("semel-demo-*"))


def test_the_worker_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    with Demo(data=tmp_path) as demo:
        worker, parent = demo.worker(), demo.process
        parent.kill()
        wait_until_dead([worker])


def test_a_data_folder_is_kept_and_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "a folder" / "100%"
    with Demo(data=folder) as demo:
        first = demo.pay("somebody", "k")
    assert {file.name for file in folder.iterdir()} >= {"semel.db", "bank.db", "timeline.jsonl"}
    with Demo(data=folder) as demo:
        again = demo.pay("somebody", "k")
        assert (again.replayed, again.body) == (True, first.body)
        assert demo.paid("somebody", "k") == [2500]


def test_a_busy_port_that_was_asked_for_is_an_error() -> None:
    with taken() as port:
        done = subprocess.run([*COMMAND, "--port", str(port)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert f"port {port} is in use" in done.stderr
    assert "--port" in done.stderr


def test_the_default_port_gives_way_to_the_next_free_one() -> None:
    with taken() as port:
        with pytest.raises(PortBusy, match=f"port {port} is in use"):
            listen("127.0.0.1", port, further=False)
        with listen("127.0.0.1", port, further=True) as listener:
            assert port < listener.getsockname()[1] <= port + 20


def test_an_address_that_is_not_ours_is_an_error() -> None:
    done = CliRunner().invoke(command.demo, ["--host", "192.0.2.1", "--port", "0"])
    assert done.exit_code == 1
    assert "cannot listen on 192.0.2.1" in done.output


def test_a_worker_that_cannot_serve_is_not_started_for_ever(tmp_path: Path) -> None:
    (tmp_path / "bank.db").write_text("this is no ledger " * 100)
    done = subprocess.run(
        [*COMMAND, "--port", "0", "--data", str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert "the worker ended with exit code 1" in done.stderr


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    done = CliRunner().invoke(command.demo, [])
    assert done.exit_code == 1
    assert 'pip install "semel[demo]"' in done.output


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "demo.md").read_text()
    for option in (name for each in command.demo.params for name in (*each.opts, *each.secondary_opts)):
        assert f"`{option}`" in page
