"""`GET /api/ps` and the model details of the other lists, by version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.ollama.sim.replies import rfc3339_nano

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aibs.ollama.sim.profile import Profile
    from aibs.ollama.sim.runner import Runner
    from aibs.ollama.sim.spec import SimModel

YEAR_ONE = "0001-01-01T00:00:00Z"
_BYTES_PER_PARAMETER = 0.6


def details(model: SimModel) -> dict[str, Any]:
    """`details` as in ps, tags and show."""
    billions = model.size_bytes / _BYTES_PER_PARAMETER / 1e9
    return {
        "parent_model": "",
        "format": "safetensors" if model.engine == "mlx" else "gguf",
        "family": model.shown_family,
        "families": [model.shown_family],
        "parameter_size": f"{billions:.1f}B",
        "quantization_level": "Q4_K_M",
    }


def shown(profile: Profile, runners: Iterable[Runner]) -> list[Runner]:
    """The runners that `/api/ps` lists."""
    return [
        runner
        for runner in runners
        if runner.state != "loading" or profile.visible_while_loading(runner.model.engine)
    ]


def ps_document(profile: Profile, runners: Iterable[Runner], now_ns: int) -> dict[str, Any]:
    """The body of `/api/ps`: latest expiry first, from 0.2 on, to the second.

    A runner whose first request has not ended shows now + keep-alive, sliding with each look.
    """
    listed = [
        (runner.expires_at_ns or now_ns + max(runner.keep_alive_ns, 0), runner)
        for runner in shown(profile, runners)
    ]
    if profile.since(0, 2):
        listed.sort(key=lambda entry: -(entry[0] // 10**9))
    return {"models": [_entry(profile, runner, expires_ns) for expires_ns, runner in listed]}


def slides(profile: Profile, runners: Iterable[Runner]) -> bool:
    """Whether the body depends on the moment of the look."""
    return any(runner.expires_at_ns is None for runner in shown(profile, runners))


def _entry(profile: Profile, runner: Runner, expires_ns: int) -> dict[str, Any]:
    model = runner.model
    unsized = runner.state == "loading" and model.engine == "mlx"
    size = 0 if unsized else runner.size_bytes
    vram = 0 if unsized else runner.size_vram_bytes
    entry: dict[str, Any] = {"name": model.display, "model": model.display}
    if profile.bare_ps:
        entry["modified_at"] = YEAR_ONE
    entry |= {
        "size": size,
        "digest": model.shown_digest,
        "details": details(model),
        "expires_at": rfc3339_nano(expires_ns),
    }
    if vram or not profile.bare_ps:
        entry["size_vram"] = vram
    if profile.since(0, 10):
        entry["context_length"] = 0 if unsized else runner.context_length
    return entry
