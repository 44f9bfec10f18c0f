"""The program: how it starts, what it imports, and that every command and option is documented."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.calls import run
from semel.cli.group import COMMANDS, semel

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
OTHERS = ("demo", "gateway", "try")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EVERY = dict(commands(semel))


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_is_documented(path: tuple[str, ...]) -> None:
    command = EVERY[path]
    assert command.help, "it has no help"
    assert f"semel {' '.join(path)}" in DOCS
    if path[0] not in OTHERS:
        assert "Examples:\n" in command.help


OPTIONS = [
    (path, option) for path, command in EVERY.items() for option in command.params if isinstance(option, click.Option)
]


@pytest.mark.parametrize(
    ("path", "option"), OPTIONS, ids=[f"{' '.join(path)} {option.opts[0]}" for path, option in OPTIONS]
)
def test_every_option_is_documented(path: tuple[str, ...], option: click.Option) -> None:
    assert option.help, "it has no help"
    section = re.split(r"\n#+ ", DOCS.partition(f"# `semel {' '.join(path)}")[2])[0]
    for name in (*option.opts, *option.secondary_opts):
        assert f"`{name}`" in section
    if path[0] not in OTHERS:
        shown = run(*path, "--help").output
        assert option.opts[0] in shown
        own = "_".join(["SEMEL", *path, option.name or ""]).upper().replace("-", "_")
        variable = option.envvar if isinstance(option.envvar, str) else own
        assert variable in re.sub(r"\s+", "", shown)
        assert f"`{variable}`" in section


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in OTHERS])
def test_the_list_says_what_the_command_says_first(name: str) -> None:
    first = (EVERY[(name,)].help or "").split("\n\n")[0].replace("\n", " ")
    assert COMMANDS[name][1].rstrip(".") in first.replace(", or for an agent's skill file", "")
    assert name in run("--help").output


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_help_imports_no_driver_and_no_server() -> None:
    done = python(
        "import sys, json\n"
        "sys.argv = ['semel', '--help']\n"
        "from semel.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not loaded & {"psycopg", "redis", "uvicorn", "aiohttp", "sqlite3", "semel.cli.keys"}


def test_without_click_it_says_what_to_install() -> None:
    done = python("import sys; sys.modules['click'] = None\nfrom semel.__main__ import main\nmain()")
    assert done.returncode == 1
    assert done.stderr == 'The semel command needs click, which is not installed: pip install "semel[cli]"\n'


def test_a_command_without_its_extra_says_what_to_install() -> None:
    done = python(
        "import sys; sys.modules['psycopg'] = None\n"
        "sys.argv = ['semel', 'doctor', '--store', 'postgresql://localhost/x']\n"
        "from semel.__main__ import main\nmain()"
    )
    assert done.returncode == 2
    assert "pip install 'semel[postgres]'" in done.stderr
    done = python(
        "import sys; sys.modules['uvicorn'] = None; sys.modules['semel.demo'] = None\n"
        "from semel.cli import group\n"
        "group.COMMANDS['demo'] = ('semel.cli.needs_uvicorn:x', '', 'demo')\n"
        "group.find_spec = lambda name: True\n"
        "def load(name): raise ModuleNotFoundError(name='uvicorn')\n"
        "group.import_module = load\n"
        "sys.argv = ['semel', 'demo']\n"
        "from semel.__main__ import main\nmain()"
    )
    assert done.returncode == 1
    assert done.stderr.endswith('semel demo needs uvicorn, which is not installed: pip install "semel[demo]"\n')


def test_the_module_is_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "semel", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "semel")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("doctor",), 2),
        (("doctor", "--store", "sqlite://two-slashes.db"), 2),
        (("doctor", "--store", "nonsense"), 2),
        (("doctor", "--stor", "memory://"), 2),
        (("nonsense",), 2),
        (("keys", "list", "--store", "memory://", "--older-than", "a while"), 2),
        (("keys", "list", "--store", "redis://127.0.0.1:1"), 3),
        (("keys", "list", "--store", "memory://"), 0),
    ],
)
def test_exit_status(words: tuple[str, ...], status: int) -> None:
    done = run(*words)
    assert done.exit_code == status
    assert "Traceback" not in done.output


def test_a_warning_is_one_line() -> None:
    """What a store warns about on first use is not a Python warning with a line of source code."""
    done = python(
        "import warnings\n"
        "from click.testing import CliRunner\n"
        "from semel.cli import stats\n"
        "from semel.cli.group import semel\n"
        "import click\n"
        "stats.stats.callback = lambda **_: warnings.warn('mind this')\n"
        "done = CliRunner().invoke(semel, ['stats', '--store', 'memory://'])\n"
        "print(done.output)"
    )
    assert done.stdout.strip() == "Warning: mind this"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_documented_and_works(shell: str) -> None:
    assert f"_SEMEL_COMPLETE={shell}_source semel" in DOCS
    assert "_SEMEL_COMPLETE" in run("--help").output
    program = Path(sys.executable).with_name("semel")
    for instruction, words, expected in (
        (f"{shell}_source", "", "_SEMEL_COMPLETE"),
        (f"{shell}_complete", "semel keys resolve-", "resolve-many"),
    ):
        environment = {
            **os.environ,
            "_SEMEL_COMPLETE": instruction,
            "COMP_WORDS": words,
            "COMP_CWORD": words.rpartition(" ")[2] if shell == "fish" else "2",
        }
        done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert expected in done.stdout, done.stderr
