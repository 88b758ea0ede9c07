"""Which server answers: only Valkey 8 and newer runs the scripts as they are meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.errors import UnsupportedServer

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIMUM_MAJOR = 8


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What `INFO server` says of a server."""

    name: str
    version: str
    run_id: str

    @property
    def supported(self) -> bool:
        """Whether it is Valkey 8 or newer."""
        major = self.version.partition(".")[0]
        return self.name == "valkey" and major.isdigit() and int(major) >= MINIMUM_MAJOR

    @property
    def described(self) -> str:
        """Name and version for a person."""
        return f"{self.name.capitalize()} {self.version}"


def server_info(info: Mapping[str, Any]) -> ServerInfo:
    """Read `INFO server`. `redis_version` says 7.2.4 on every Valkey, so it names only others."""
    text = {
        key: value.decode() if isinstance(value, bytes) else value for key, value in info.items()
    }
    if "valkey_version" in text or text.get("server_name") == "valkey":
        name, version = "valkey", str(text.get("valkey_version", "unknown"))
    else:
        name = str(text.get("server_name") or _other_name(text))
        version = str(text.get(f"{name}_version") or text.get("redis_version") or "unknown")
    return ServerInfo(name, version, str(text.get("run_id", "")))


def _other_name(text: Mapping[str, Any]) -> str:
    for name in ("dragonfly", "keydb", "garnet", "kvrocks"):
        if f"{name}_version" in text:
            return name
    return "redis"


def require_supported(info: ServerInfo, where: str) -> None:
    """Raise UnsupportedServer unless the server is Valkey 8 or newer, saying what was found."""
    if not info.supported:
        raise UnsupportedServer(
            f"{where} is {info.described}, not Valkey {MINIMUM_MAJOR} or newer.",
            mend="Point AIBS_VALKEY_URL and AIBS_MODEL_CLUSTER_VALKEY_URL at a Valkey 8+ server.",
        )
