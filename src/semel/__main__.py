"""`semel`, and `python -m semel`: the command line, if its extra is installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say in one line what is missing."""
    try:
        import click  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ModuleNotFoundError:
        sys.exit('The semel command needs click, which is not installed: pip install "semel[cli]"')
    from semel.cli.group import semel

    semel(prog_name="semel")


if __name__ == "__main__":
    main()
