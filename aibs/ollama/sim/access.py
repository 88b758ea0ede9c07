"""Who is let in: the Host and Origin checks of a server, which answer 403 without a body."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from urllib.parse import urlsplit

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
_APP_SCHEMES = ("app", "file", "tauri", "vscode-webview", "vscode-file")
_LOCAL_ORIGINS = ("localhost", "127.0.0.1", "0.0.0.0", "::1")


@lru_cache(maxsize=256)
def host_allowed(host: str) -> bool:
    """Whether a server that listens on loopback only takes this Host header."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    if name in ("", "localhost", socket.gethostname().lower()) or name.endswith(_LOCAL_SUFFIXES):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_unspecified


@lru_cache(maxsize=256)
def origin_allowed(origin: str) -> bool:
    """Whether the Origin header is absent, or that of a page of this machine."""
    if not origin:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in _APP_SCHEMES or (
        parts.scheme in ("http", "https") and parts.hostname in _LOCAL_ORIGINS
    )
