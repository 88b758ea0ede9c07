"""`GET /api/tags`: what is installed on a node. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aibs.codec import loads
from aibs.errors import InvalidResponse
from aibs.model_names import InvalidModelName, comparison_key

_UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """One installed name. `size_bytes` is what it takes on disk; `remote`: it runs elsewhere."""

    name: str
    key: str | None
    digest: str | None
    size_bytes: int | None
    remote: bool


def parse_tags(body: bytes) -> tuple[InstalledModel, ...]:
    """Read an answer's body; entries that cannot be read are left out. Raises InvalidResponse."""
    try:
        document = loads(body.removeprefix(_UTF8_BOM))
    except (ValueError, RecursionError) as error:
        raise InvalidResponse(
            "/api/tags answered with something that is not JSON.", reason="invalid_response"
        ) from error
    entries = document.get("models") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise InvalidResponse(
            "/api/tags answered without a list of models.", reason="invalid_response"
        )
    return tuple(model for entry in entries if (model := _installed(entry)) is not None)


def _installed(entry: Any) -> InstalledModel | None:
    if not isinstance(entry, dict):
        return None
    name = entry.get("name") or entry.get("model")
    if not isinstance(name, str):
        return None
    try:
        key = comparison_key(name)
    except InvalidModelName:
        key = None
    digest, size = entry.get("digest"), entry.get("size")
    return InstalledModel(
        name=name,
        key=key,
        digest=(digest.lower().removeprefix("sha256:") or None)
        if isinstance(digest, str)
        else None,
        size_bytes=size if isinstance(size, int) and not isinstance(size, bool) else None,
        remote=bool(entry.get("remote_model") or entry.get("remote_host")),
    )
