"""The roster: from the variable's text, or the file that it names, to workers."""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from aibs.codec import BYTES_PER_GB, gb_to_bytes, loads
from aibs.fleet import KeepAlive, Kind, Worker
from aibs.model_names import InvalidModelName, parse_reference
from aibs.settings.nearest import nearest
from aibs.settings.parsing import NAME_RULE, escaped, is_identifier, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE_MAX_BYTES = 1 << 20
WORKERS_MAX = 1000
MAX_GB = 2**50 // BYTES_PER_GB
NUM_CTX_MAX = 2**31 - 1

MEND = (
    'Write a JSON list like [{"worker_id":"answer","model":"llama3:8b","roles":["answer"],'
    '"kind":"chat","resident_weight_gb":7.2,"active_parameter_billions":8}], or @ and the path of '
    "a .json, .yaml or .toml file."
)
_KNOWN = (
    "worker_id",
    "model",
    "roles",
    "kind",
    "resident_weight_gb",
    "active_parameter_billions",
    "num_ctx",
    "keep_alive",
)
# Go's duration, as Ollama reads keep_alive in text.
_DURATION = re.compile(r"[+-]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)")
# Above this Ollama's nanoseconds overflow, and the model is unloaded at once.
KEEP_ALIVE_MAX_S = 9_000_000_000
# One byte in GB, one parameter in billions: what is smaller was not measured.
LEAST = Decimal("1e-9")


class InvalidRoster(ValueError):
    """The roster cannot be used. The message is a clause that says why; `mend` what to do."""

    def __init__(self, problem: str, mend: str = MEND) -> None:
        super().__init__(problem)
        self.problem = problem
        self.mend = mend


def read_roster(text: str, directory: Path) -> tuple[tuple[Worker, ...], tuple[str, ...]]:
    """The workers, and warnings. `@path` is relative to `directory`. Raises InvalidRoster."""
    document = _document(text.strip(), directory)
    if isinstance(document, dict) and set(document) == {"workers"}:
        # TOML has no list at its top.
        document = document["workers"]
    if not isinstance(document, list):
        raise InvalidRoster("is not a list of workers")
    if len(document) > WORKERS_MAX:
        raise InvalidRoster(f"has {len(document)} workers, more than {WORKERS_MAX}")
    warnings: list[str] = []
    workers = tuple(_worker(item, place, warnings) for place, item in enumerate(document, 1))
    _check_together(workers, warnings)
    return workers, tuple(warnings)


def _document(text: str, directory: Path) -> Any:
    if not text.startswith("@"):
        try:
            return loads(text)
        except ValueError as error:
            raise InvalidRoster(f"is not JSON: {error}") from error
    try:
        path = directory / Path(text[1:]).expanduser()
    except RuntimeError as error:
        raise InvalidRoster(f"names {shown(text[1:])}, whose home directory is unknown") from error
    readers = {".json": loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load, ".toml": _toml}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InvalidRoster(f"names {shown(path)}, which is not .json, .yaml or .toml")
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "that is no path"
        raise InvalidRoster(
            f"names {shown(path)}, which cannot be read: {reason}",
            "Give the path of a file that this user may read, relative to the working directory.",
        ) from error
    if len(data) > FILE_MAX_BYTES:
        raise InvalidRoster(f"names {shown(path)}, which is larger than 1 MiB")
    try:
        return reader(data)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = escaped(" ".join(str(error).split())[:200])
        raise InvalidRoster(
            f"names {shown(path)}, which is not valid {path.suffix[1:].upper()}: {reason}",
            "Mend the file.",
        ) from error


def _toml(data: bytes) -> Any:
    return tomllib.loads(data.decode())


def _worker(item: Any, place: int, warnings: list[str]) -> Worker:
    if not isinstance(item, dict):
        raise InvalidRoster(f"has as worker {place} something that is not an object")
    worker_id = item.get("worker_id")
    label = f"worker {place}"
    if not isinstance(worker_id, str) or not is_identifier(worker_id):
        found = "no worker_id" if worker_id is None else f"the worker_id {shown(worker_id)}"
        raise InvalidRoster(f"has {found} in {label}", f"Give each worker an id. {NAME_RULE}")
    label = f"{label} ({worker_id})"
    for name in item:
        if name not in _KNOWN:
            hint = nearest(str(name), _KNOWN)
            warnings.append(
                f"AIBS_MODEL_ADMISSION_WORKER_ROSTER has in {label} the unknown field "
                f"{shown(name)}, which is ignored{f'; did you mean {hint}?' if hint else '.'}"
            )
    return Worker(
        worker_id=worker_id,
        model=_model(item, label),
        roles=_roles(item, label),
        kind=_kind(item, label),
        resident_weight_bytes=_weight(item, label),
        active_parameter_billions=_billions(item, label),
        num_ctx=_num_ctx(item, label),
        keep_alive=_keep_alive(item, label),
    )


def _model(item: Mapping[str, Any], label: str) -> str:
    model = item.get("model")
    if not isinstance(model, str):
        raise InvalidRoster(f"has no model in {label}", "Give the model's name, like llama3:8b.")
    try:
        reference = parse_reference(model)
    except InvalidModelName as error:
        raise InvalidRoster(
            f"has in {label} the model {shown(model)}, which is no Ollama name: {error}",
            "Write it as `ollama list` shows it.",
        ) from error
    if reference.source == "cloud":
        raise InvalidRoster(
            f"has in {label} the model {shown(model)}, which runs in the cloud and on no node",
            "Take it out of the roster.",
        )
    if reference.source == "local":
        # Before Ollama 0.18 a tag, since then no part of the name: it would match no node's ps.
        raise InvalidRoster(
            f"has in {label} the model {shown(model)}, whose ending says where it runs",
            f"Write {reference.name.display}: the roster's models all run on the nodes.",
        )
    return model.strip()


def _roles(item: Mapping[str, Any], label: str) -> tuple[str, ...]:
    roles = item.get("roles")
    if roles is None:
        return ()
    if not isinstance(roles, list) or not all(
        isinstance(role, str) and is_identifier(role) for role in roles
    ):
        raise InvalidRoster(f"has in {label} roles that are not a list of names", NAME_RULE)
    if len(set(roles)) != len(roles):
        raise InvalidRoster(f"has in {label} a role twice", "Name each role once.")
    return tuple(roles)


def _kind(item: Mapping[str, Any], label: str) -> Kind:
    kind = item.get("kind", "chat")
    if kind == "chat":
        return "chat"
    if kind == "embedding":
        return "embedding"
    raise InvalidRoster(f"has in {label} the kind {shown(kind)}", "Set kind to chat or embedding.")


def _decimal(item: Mapping[str, Any], name: str, label: str, largest: int) -> Decimal | None:
    value = item.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise InvalidOperation
        number = Decimal(str(value))
        if not number.is_finite() or not LEAST <= number <= largest:
            raise InvalidOperation
    except (InvalidOperation, ValueError) as error:
        raise InvalidRoster(
            f"has in {label} the {name} {shown(value)}, not a number above 0",
            "Set it to what was measured, or leave it out until it is.",
        ) from error
    return number


def _weight(item: Mapping[str, Any], label: str) -> int | None:
    weight_gb = _decimal(item, "resident_weight_gb", label, MAX_GB)
    return None if weight_gb is None else gb_to_bytes(weight_gb)


def _billions(item: Mapping[str, Any], label: str) -> Decimal | None:
    return _decimal(item, "active_parameter_billions", label, 10**6)


def _num_ctx(item: Mapping[str, Any], label: str) -> int | None:
    value = item.get("num_ctx")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= NUM_CTX_MAX:
        raise InvalidRoster(
            f"has in {label} the num_ctx {shown(value)}, not a number of tokens",
            "Set it to a whole number like 8192, or leave it out.",
        )
    return value


def _keep_alive(item: Mapping[str, Any], label: str) -> KeepAlive:
    value = item.get("keep_alive")
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and abs(value) <= KEEP_ALIVE_MAX_S and value == int(value):
        return int(value)
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return value
    raise InvalidRoster(
        f"has in {label} the keep_alive {shown(value)}, which Ollama does not take",
        'Write a whole number of seconds like 300, a duration like "5m", or -1 for ever.',
    )


def _check_together(workers: Sequence[Worker], warnings: list[str]) -> None:
    ids = [worker.worker_id for worker in workers]
    if repeated := sorted({worker_id for worker_id in ids if ids.count(worker_id) > 1}):
        raise InvalidRoster(f"has the worker_id {shown(repeated[0])} twice", "Give each its own.")
    weighed: dict[str, Worker] = {}
    seen: dict[str, Worker] = {}
    for worker in workers:
        first = seen.setdefault(worker.key, worker)
        if first.num_ctx != worker.num_ctx:
            warnings.append(
                f"AIBS_MODEL_ADMISSION_WORKER_ROSTER gives {worker.model} another num_ctx in "
                f"{worker.worker_id} than in {first.worker_id}: Ollama reloads it at each change."
            )
        if worker.resident_weight_bytes is None:
            continue
        known = weighed.setdefault(worker.key, worker)
        if known.resident_weight_bytes != worker.resident_weight_bytes:
            raise InvalidRoster(
                f"gives the model {shown(worker.model)} another resident_weight_gb in "
                f"{worker.worker_id} than in {known.worker_id}",
                "Make them equal: one copy of the model serves both.",
            )
