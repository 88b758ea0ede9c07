"""What of a native request is the worker's to say, not the client's. Pure.

Any difference in a runner's options reloads the model for everyone (ollama.md §3.5), and the last
keep_alive wins for everyone (§3.3): both come from the roster, or stay Ollama's defaults, which are
the same for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aibs.ollama.keep_alive import InvalidDuration, parse_keep_alive

if TYPE_CHECKING:
    from aibs.fleet import Worker

_RUNNER_NUMBERS: Final = frozenset(
    {"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "draft_num_predict"}
)
_RUNNER_BOOLEANS: Final = frozenset(
    {"use_mmap", "low_vram", "f16_kv", "vocab_only", "use_mlock", "numa"}
)
RUNNER_OPTIONS: Final = _RUNNER_NUMBERS | _RUNNER_BOOLEANS | {"logits_all"}
"""Options that decide how a model is loaded."""

_NUMBERS: Final = frozenset(
    {
        "num_keep",
        "seed",
        "num_predict",
        "top_k",
        "top_p",
        "min_p",
        "tfs_z",
        "typical_p",
        "repeat_last_n",
        "temperature",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        *_RUNNER_NUMBERS,
    }
)
_BOOLEANS: Final = _RUNNER_BOOLEANS | {"penalize_newline"}


def shaped(fields: dict[str, Any], worker: Worker) -> dict[str, Any] | None:
    """The members with the worker's options and keep-alive; None where nothing is changed."""
    options = fields.get("options")
    options = options if isinstance(options, dict) else {}
    wanted = {name: value for name, value in options.items() if name not in RUNNER_OPTIONS}
    if worker.num_ctx is not None:
        wanted["num_ctx"] = worker.num_ctx
    kept = fields.get("keep_alive")
    if wanted == options and kept == worker.keep_alive and "shift" not in fields:
        return None
    # `shift` is a runner's option too, from 0.30 on, though it stands beside `options`.
    found = {
        name: value
        for name, value in fields.items()
        if name not in ("options", "keep_alive", "shift")
    }
    if wanted:
        found["options"] = wanted
    if worker.keep_alive is not None:
        found["keep_alive"] = worker.keep_alive
    return found


def option_fault(fields: dict[str, Any]) -> str | None:
    """What is wrong with the type of an option: Ollama answers 500 to it, as to a node's fault."""
    options = fields.get("options")
    if options is None:
        return None
    if not isinstance(options, dict):
        return "options is not an object"
    for name, value in options.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None:
            continue
        if name in _NUMBERS and not number:
            return f"option {name} must be a number"
        if name in _BOOLEANS and not isinstance(value, bool):
            return f"option {name} must be true or false"
        if name == "stop" and not (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
        ):
            return "option stop must be a list of strings"
    return None


def is_unload(fields: dict[str, Any]) -> bool:
    """Whether the request is for nothing but an unload: keep_alive 0 and nothing to answer."""
    try:
        if parse_keep_alive(fields.get("keep_alive")) != 0:
            return False
    except InvalidDuration:
        return False
    return not any(fields.get(name) for name in ("prompt", "messages", "images"))
