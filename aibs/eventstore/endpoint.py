"""Where the coordination server is: the URL forms that operators write, and what may be shown of
them. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

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
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_OPEN_PARAMETERS = ("db", *_TLS_OPTIONS)
_PARAMETERS = (*_OPEN_PARAMETERS, "sentinel_username", "sentinel_password")

MASK = "***"
_HOST = r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?"
_ADDRESS = re.compile(_HOST)
_ADDRESSES = re.compile(rf"{_HOST}( *, *{_HOST})*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")


def redact(url: str) -> str:
    """The URL with every user, password and secret parameter masked; never a line break.

    Shows only what it understands. Who types a password with an unescaped `/`, `?` or `#`, forgets
    the @ or mistypes the scheme still finds none of it on a screen or in a log.
    """
    shown = _redacted(url.strip())
    return shown if shown.isprintable() else MASK


def _redacted(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        rest = url
        if rest and "@" not in rest and not _ADDRESS.fullmatch(rest):
            return MASK
        lead = ""
    elif not _SCHEME.fullmatch(scheme):
        return MASK
    else:
        lead = f"{scheme}://"
    if "@" in rest and not (scheme.lower() == "unix" and rest.startswith("/")):
        before, _, rest = rest.rpartition("@")
        lead += f"{MASK}@"
        # Is this the @ before the host, or one within a parameter's value? Nobody can tell.
        if "?" in before:
            return f"{scheme}://{MASK}" if separator else MASK
    rest, hash_, _ = rest.partition("#")
    rest, question, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    if authority and not _ADDRESSES.fullmatch(authority):
        return f"{lead}{MASK}"
    tail = f"?{_redacted_query(query)}" if question else ""
    return f"{lead}{authority}{slash}{path}{tail}{f'#{MASK}' if hash_ else ''}"


def _redacted_query(query: str) -> str:
    kept = []
    for item in query.split("&"):
        name, equals, _ = item.partition("=")
        if name in _OPEN_PARAMETERS:
            kept.append(item)
            continue
        # What follows may be the rest of a secret that holds an unescaped &.
        kept.append(f"{name}={MASK}" if equals and re.fullmatch("[a-z_]{1,40}", name) else MASK)
        break
    return "&".join(kept)


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


def parse_url(raw: str) -> Endpoint:
    """Read a coordination URL. Raises ConfigurationError, with every secret masked."""
    url = raw.strip()
    if url == EMBEDDED:
        return Endpoint("embedded", EMBEDDED)
    if not url.isprintable():
        raise _refuse(url, "it has a control character or a line break")
    try:
        parts = urlsplit(url)
    except ValueError:
        # The cause's own text repeats the password.
        raise _refuse(url, "it cannot be read as a URL") from None
    if parts.scheme.lower() not in _SCHEMES or "://" not in url:
        # Without "://" what stands before the colon may be a user, or a password.
        scheme = parts.scheme if "://" in url else ""
        raise _refuse(url, f"its scheme is {scheme or 'missing'}")
    _check_escapes(url, parts)
    kind, tls = _SCHEMES[parts.scheme.lower()]
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if query.keys() - set(_PARAMETERS):
        # Not named: it may be the rest of a password with an unescaped & or ?.
        raise _refuse(url, f"it has a parameter other than {', '.join(_PARAMETERS)}")
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
        if hosts:
            # unix://run/valkey.sock would mean /valkey.sock, on a host called run.
            raise _refuse(url, "its socket's path does not begin with / (unix:///run/valkey.sock)")
        if parts.path in ("", "/"):
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


def _check_escapes(url: str, parts: SplitResult) -> None:
    """Refuse a URL that an unescaped character cuts in other places than its writer thinks."""
    within_path = parts.scheme.lower() == "unix" and not parts.netloc
    after = parts.query + parts.fragment + ("" if within_path else parts.path)
    if "@" in after:
        raise _refuse(
            url,
            "it has an @ after the host: in a user or password write / ? # @ as %2F %3F %23 %40",
        )
    if parts.fragment or url.endswith("#"):
        raise _refuse(url, "it has a #, which is written %23 in a user or password")


def _db(url: str, text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise _refuse(url, "its database is not a number")
    return int(text)


def _hosts(url: str, text: str, default_port: int) -> tuple[tuple[str, int], ...]:
    addresses = []
    for item in text.split(","):
        match = _ADDRESS.fullmatch(item.strip())
        if match is None:
            raise _refuse(url, "it names no host, or one that is not host:port")
        port = int(match.group(2) or default_port)
        if not 0 < port < 65536:
            raise _refuse(url, f"port {port} does not exist")
        addresses.append((match.group(1).strip("[]"), port))
    return tuple(addresses)
