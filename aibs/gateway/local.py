"""What counts as this machine: a peer's address, a Host, an Origin. Pure but for the host's name.

Local are the names by which no other machine can be asked: `localhost` and anything under it
(RFC 6761), a loopback address, this machine's own name. A browser that was led here by a page of
elsewhere sends another one, for it sends the name in its address bar.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from functools import lru_cache
from typing import Any, Final, Literal

Peer = Literal["socket", "loopback", "remote"]

NAME_BYTES_MAX: Final = 300
"""The longest host name has 253."""

_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]/@?#\s]*))(?::[0-9]{0,5})?")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(.+)", re.IGNORECASE)


def is_local_peer(client: Any, server: Any) -> Peer:
    """Where a connection comes from, by the addresses of its two ends as ASGI tells them."""
    if client:
        return "loopback" if _is_loopback(client[0]) else "remote"
    # A socket of the file system has no port. One whose peer's address could not be had is not one.
    return "socket" if server is None or server[1] is None else "remote"


def is_local_host(value: bytes) -> bool:
    """Whether a Host header's value names this machine."""
    return len(value) <= NAME_BYTES_MAX and _is_local_authority(value.decode("latin-1"))


def is_local_origin(value: bytes) -> bool:
    """Whether an Origin header's value is of a page of this machine. `null` is of nobody's."""
    if len(value) > NAME_BYTES_MAX:
        return False
    found = _ORIGIN.fullmatch(value.decode("latin-1").strip())
    return found is not None and _is_local_authority(found[1])


@lru_cache(maxsize=256)
def _is_local_authority(text: str) -> bool:
    found = _HOST.fullmatch(text.strip())
    if found is None:
        return False
    if found[1] is not None:
        return _is_loopback(found[1])
    name = found[2].lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_loopback(name) or (name != "" and name in _own_names())


@lru_cache(maxsize=1024)
def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


@lru_cache(maxsize=1)
def _own_names() -> frozenset[str]:
    """As the machine itself says it; a resolver is not asked, whose answers are somebody else's."""
    whole = socket.gethostname().lower().rstrip(".")
    return frozenset({whole, whole.partition(".")[0]}) - {""}
