"""docs/incident.md out of the recorded log: each command with its real output.

python -m tests.integration.incident_page docs/incident.md
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COMMAND = re.compile(r"```\n\$ aibs ([^\n]+)\n.*?```", re.DOTALL)


def output_of(arguments: str, environment: dict[str, str]) -> str:
    """What the command prints, and its exit status where it is not 0."""
    done = subprocess.run(
        [sys.executable, "-m", "aibs", *arguments.split()],
        cwd=ROOT,
        env={**environment, "COLUMNS": "140", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    text = done.stdout + done.stderr
    shown = "\n".join(line.rstrip() for line in text.splitlines())
    return shown if done.returncode == 0 else f"{shown}\n(exit status {done.returncode})"


def page(text: str, environment: dict[str, str]) -> str:
    """The page with every command's output as it is now."""

    def again(match: re.Match[str]) -> str:
        arguments = match.group(1)
        return f"```\n$ aibs {arguments}\n{output_of(arguments, environment)}\n```"

    return _COMMAND.sub(again, text)


if __name__ == "__main__":
    import os

    target = Path(sys.argv[1])
    target.write_text(page(target.read_text("utf-8"), dict(os.environ)), "utf-8")
