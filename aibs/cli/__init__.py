"""The `aibs` command: one module a command, no logic that a test would want without a terminal.

Command modules import only typer at their top and the rest inside the command, so that
`aibs --help` does not pay for HTTP clients, Valkey clients and schemas that it never uses.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""What a shell reports for a command that Ctrl-C ended."""


def main() -> None:
    """Entry point of the console script."""
    try:
        from aibs.children.leash import tie

        tie()
        from aibs.cli.app import run

        run()
    except KeyboardInterrupt:
        # Also while the imports go on, which is when an impatient person changes their mind.
        sys.exit(INTERRUPTED)
