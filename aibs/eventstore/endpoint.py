"""Where the coordination server is: the URL forms that operators write, and what may be shown of
them. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from aibs.errors import ConfigurationError

Kind = Literal["direct", "unix", "sentinel", "cluster", "embedded"]

EMBEDDED = "embedded"
DEFAULT_PORT = 6379
SENTINEL_PORT = 26379

_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("direct", False),
    "rediss": ("direct", True),
    "valkey": ("direct", False),
    "valkeys": ("direct", True),
    "unix": ("unix", False),
    "redis+sentinel": ("sentinel", False),
    "valkey+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "valkeys+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "valkey+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "valkeys+cluster": ("cluster", True),
}
_FORMS = (
    "redis://, rediss://, valkey://, valkeys://, unix://, redis+sentinel://host:port,…/service/db, "
    "redis+cluster://host:port,… or the word embedded"
)
_SECRET_QUERY = re.compile(r"(?i)([?&][a-z_]*(?:password|secret|token|username)[a-z_]*=)[^&#]*")


def redact(url: str) -> str:
    """The URL with every user, password and secret parameter masked.

    A password with an unescaped `/` or `#`, or a mistyped scheme, hides nothing from us: all
    before the last @ is masked, but for an @ within the socket path of unix://.
    """
    scheme, separator, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    within_path = scheme.lower() == "unix" and rest.startswith("/")
    if "@" in rest and not within_path:
        rest = f"***@{rest.rpartition('@')[2]}"
    return _SECRET_QUERY.sub(r"\1***", f"{scheme}{separator}{rest}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed URL. Secrets stay out of `repr`; `display` may be shown to anybody."""

    kind: Kind
    display: str
    hosts: tuple[tuple[str, int], ...] = ()
    tls: bool = False
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    tls_options: tuple[tuple[str, str], ...] = ()


def _refuse(url: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{redact(url)} is not a usable coordination URL: {why}.", mend=f"Write {_FORMS}."
    )


_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")


def parse_url(raw: str) -> Endpoint:
    """Read a coordination URL. Raises ConfigurationError, with every secret masked."""
    url = raw.strip()
    if url == EMBEDDED:
        return Endpoint("embedded", EMBEDDED)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _refuse(url, "it cannot be read as a URL") from error
    if parts.scheme.lower() not in _SCHEMES:
        # Without "://" what stands before the colon may be a user, or a password.
        scheme = parts.scheme if "://" in url else ""
        raise _refuse(url, f"its scheme is {scheme or 'missing'}")
    kind, tls = _SCHEMES[parts.scheme.lower()]
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = {"db", "sentinel_username", "sentinel_password", *_TLS_OPTIONS}
    if unknown := sorted(query.keys() - known):
        raise _refuse(url, f"it has the unknown parameter {unknown[0]}")
    common = {
        "display": redact(url),
        "tls": tls,
        "username": unquote(username) or None,
        "password": unquote(password) or None,
        "sentinel_username": query.get("sentinel_username"),
        "sentinel_password": query.get("sentinel_password"),
        "tls_options": tuple((name, query[name]) for name in _TLS_OPTIONS if name in query),
    }
    if kind == "unix":
        if not parts.path or parts.path == "/":
            raise _refuse(url, "it names no socket")
        return Endpoint(
            kind,
            path=unquote(parts.path),
            db=_db(url, query.get("db", "")),
            **common,  # type: ignore[arg-type]  # one dict for all forms
        )
    segments = [segment for segment in parts.path.split("/") if segment]
    service = ""
    if kind == "sentinel":
        if not segments:
            raise _refuse(url, "it names no sentinel service")
        service = unquote(segments.pop(0))
    if len(segments) > 1 or (kind == "cluster" and segments and segments[0] != "0"):
        raise _refuse(url, "its path is not a database number")
    default_port = SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT
    addresses = _hosts(url, hosts, default_port)
    if kind == "direct" and len(addresses) > 1:
        raise _refuse(url, "it names several hosts without +sentinel or +cluster")
    db = _db(url, segments[0] if segments else query.get("db", ""))
    return Endpoint(kind, hosts=addresses, service=service, db=db, **common)  # type: ignore[arg-type]  # one dict for all forms


def _db(url: str, text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise _refuse(url, "its database is not a number")
    return int(text)


def _hosts(url: str, text: str, default_port: int) -> tuple[tuple[str, int], ...]:
    addresses = []
    for item in text.split(","):
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?", item.strip())
        if match is None:
            raise _refuse(url, "it names no host, or one that is not host:port")
        port = int(match.group(2) or default_port)
        if not 0 < port < 65536:
            raise _refuse(url, f"port {port} does not exist")
        addresses.append((match.group(1).strip("[]"), port))
    return tuple(addresses)
