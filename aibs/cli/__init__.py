"""The `aibs` command: one module a command, no logic that a test would want without a terminal.

Command modules import only typer at their top and the rest inside the command, so that
`aibs --help` does not pay for HTTP clients, Valkey clients and schemas that it never uses.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script."""
    from aibs.cli.app import run

    run()
