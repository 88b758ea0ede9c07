"""`GET /api/ps` as it is, from every version of Ollama: bytes in, residents out. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal

from aibs.codec import loads
from aibs.errors import InvalidResponse
from aibs.model_names import InvalidModelName, comparison_key

if TYPE_CHECKING:
    from aibs.fleet import Memory

Placement = Literal["gpu", "partial", "cpu", "loading", "unknown"]

MAX_SIZE_BYTES = 2**50
"""Above a pebibyte a size is not believed."""

MAX_ENTRIES = 1024
"""More entries than this are not a list of resident models."""

_FOREVER_YEAR = 2200
"""Ollama writes "forever" as now + 292 years; no keep-alive that was meant reaches this year."""

_UTF8_BOM = b"\xef\xbb\xbf"
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)"
)


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """One entry. Sizes in bytes; None is unknown. `readable` False: it cannot be charged."""

    name: str
    key: str
    digest: str | None
    size_bytes: int | None
    size_vram_bytes: int | None
    context_length: int | None
    expires_at_ms: int | None
    expires_at: str | None
    keeps_forever: bool
    placement: Placement
    readable: bool

    def charge_bytes(self, memory: Memory) -> int | None:
        """What a node's budget is charged: on unified memory the CPU's part is the same RAM."""
        if not self.readable or self.size_bytes is None:
            return None
        vram_bytes = self.size_vram_bytes or 0
        return vram_bytes if memory == "discrete" else max(self.size_bytes, vram_bytes)


@dataclass(frozen=True, slots=True)
class PsSnapshot:
    """What a node says is resident. `unaccounted`: an entry could not be read or sized."""

    models: tuple[ResidentModel, ...]
    warnings: tuple[str, ...]
    unaccounted: bool


def _invalid(what: str) -> InvalidResponse:
    return InvalidResponse(f"/api/ps answered {what}.", reason="invalid_response")


def parse_ps(body: bytes) -> PsSnapshot:
    """Read an answer's body. Raises InvalidResponse for anything but a readable list.

    Only a list clears residency: an empty body, another shape or broken JSON say nothing.
    """
    if not body.strip():
        raise _invalid("with an empty body")
    try:
        document = loads(body.removeprefix(_UTF8_BOM))
    except (ValueError, RecursionError) as error:
        raise _invalid("with something that is not JSON") from error
    if not isinstance(document, dict) or not isinstance(document.get("models"), list):
        raise _invalid("without a list of models")
    entries = document["models"]
    if len(entries) > MAX_ENTRIES:
        raise _invalid(f"with {len(entries)} models, which no server holds")
    models: list[ResidentModel] = []
    warnings: list[str] = []
    for position, entry in enumerate(entries, 1):
        model, problem = _entry(entry, position)
        if problem:
            warnings.append(problem)
        # The same entry twice is one runner seen twice.
        if model is not None and model not in models:
            models.append(model)
    return PsSnapshot(tuple(models), tuple(warnings), bool(warnings))


def _entry(entry: Any, position: int) -> tuple[ResidentModel | None, str]:
    if not isinstance(entry, dict):
        return None, f"entry {position} is not an object"
    name = next((v for v in (entry.get("name"), entry.get("model")) if _is_text(v)), None)
    if name is None:
        return None, f"entry {position} has no name"
    problem = ""
    size, size_problem = _size(entry, "size")
    vram, vram_problem = _size(entry, "size_vram")
    if "size_vram" not in entry:
        # 0.1.38 to 0.1.41 left it out where it was 0.
        vram, vram_problem = 0, ""
    problem = size_problem or vram_problem
    if not problem and size == 0 and vram == 0:
        problem = "has no memory yet: it is loading"
    expires_ms, expires, forever = _expiry(entry.get("expires_at"))
    model = ResidentModel(
        name=name,
        key=_key(name),
        digest=_digest(entry.get("digest")),
        size_bytes=size,
        size_vram_bytes=vram,
        context_length=_context(entry.get("context_length")),
        expires_at_ms=expires_ms,
        expires_at=expires,
        keeps_forever=forever,
        placement=_placement(size, vram),
        readable=not problem,
    )
    return model, f"{name} {problem}" if problem else ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _context(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
        return value
    return None


def _size(entry: dict[str, Any], member: str) -> tuple[int | None, str]:
    value = entry.get(member)
    if value is None:
        return None, f"has no {member}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, f"has a {member} that is not a number"
    if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
        return None, f"has a {member} that is not a whole number"
    if value < 0:
        return None, f"has a negative {member}"
    if value > MAX_SIZE_BYTES:
        return None, f"has a {member} above 2^50 bytes"
    return int(value), ""


def _placement(size: int | None, vram: int | None) -> Placement:
    """As `ollama ps` tells it: nothing on the GPU is CPU, all is GPU, more than all is unknown."""
    if size is None or vram is None:
        return "unknown"
    if size == 0 and vram == 0:
        return "loading"
    if vram > size:
        return "unknown"
    if vram == 0:
        return "cpu"
    return "gpu" if vram == size else "partial"


def _key(name: str) -> str:
    try:
        return comparison_key(name)
    except InvalidModelName:
        # Servers up to 0.14 let more through; such a name equals no roster model's.
        return name.strip().lower()


def _digest(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    digest = value.strip().lower().removeprefix("sha256:")
    return digest or None


def _expiry(value: Any) -> tuple[int | None, str | None, bool]:
    """Milliseconds, the text as given, and whether it means forever."""
    if not isinstance(value, str):
        return None, None, False
    match = _RFC3339.fullmatch(value.strip())
    if match is None or match.group(1) == "0001":
        return None, None, False
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    offset = timedelta()
    if match.group(8) not in "Zz":
        sign = -1 if match.group(8)[0] == "-" else 1
        offset = sign * timedelta(hours=int(match.group(8)[1:3]), minutes=int(match.group(8)[4:6]))
    try:
        moment = datetime(
            year, month, day, hour, minute, min(second, 59), tzinfo=timezone(offset)
        ).astimezone(UTC)
    except (ValueError, OverflowError):
        return None, None, False
    fraction_ms = int((match.group(7) or "0").ljust(9, "0")) // 1_000_000
    at_ms = int(moment.timestamp()) * 1000 + fraction_ms
    return at_ms, value.strip(), moment.year >= _FOREVER_YEAR
