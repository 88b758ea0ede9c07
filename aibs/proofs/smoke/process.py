"""The test as a process: on Ctrl-C and SIGTERM its requests are left, and their leases end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.errors import ConfigurationError
from aibs.interruption import unless_interrupted
from aibs.proofs.smoke.gateway import Gateway
from aibs.proofs.smoke.service import smoke

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aibs.proofs.smoke.service import Tested
    from aibs.settings import Settings

MARGIN_S = 60.0
"""What a request may take beside the longest load and the longest wait for a first byte."""


@dataclass(frozen=True, slots=True)
class SmokeOptions:
    """What the operator asked for; None: by the settings."""

    url: str | None = None
    key_file: Path | None = None
    timeout_s: float | None = None


def run(settings: Settings, options: SmokeOptions, tell: Callable[[str], None]) -> Tested | None:
    """Test; None where it was interrupted. Raises as `smoke` does."""
    return asyncio.run(
        unless_interrupted(
            smoke(settings, gateway_of(settings, options), tell),
            lambda: tell("Stopping: the requests are left, and their leases end ..."),
        )
    )


def gateway_of(settings: Settings, options: SmokeOptions) -> Gateway:
    """The gateway of the options and settings. Raises ConfigurationError for an unusable key."""
    timeout_s = options.timeout_s or (
        settings.load_timeout_ms / 1000 + settings.api_first_byte_timeout_seconds + MARGIN_S
    )
    key = read_key(options.key_file) if options.key_file else key_of(settings.api_keys)
    return Gateway(
        url=(options.url or settings.api_url).rstrip("/"),
        key=key,
        wait_s=min(timeout_s, settings.model_cluster_queue_max_wait_seconds),
        timeout_s=timeout_s,
    )


def read_key(path: Path) -> str:
    """The key in a file: its first line. Raises ConfigurationError."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(
            f"--key-file {path} cannot be read: {why}.", mend="Name a file with one API key."
        ) from error
    key = lines[0].strip()
    if not key or not key.isprintable() or " " in key:
        raise ConfigurationError(
            f"The first line of --key-file {path} is no API key.",
            mend="Write the key alone on it, without its name.",
        )
    return key


def key_of(api_keys: str) -> str | None:
    """The first key that is written out in AIBS_API_KEYS: neither in a file nor as a digest."""
    if api_keys.startswith("@"):
        return None
    for item in api_keys.split(","):
        _, _, rest = item.strip().partition(":")
        if rest and not rest.startswith("sha256:"):
            return rest.partition(":")[0]
    return None
