"""Whose a resident model is, and what each side is charged. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aibs.fleet import Memory
    from aibs.ollama.ps import PsSnapshot, ResidentModel

Ownership = Literal["own", "foreign", "unknown"]


@dataclass(frozen=True, slots=True)
class ClassifiedModel:
    """A resident model with its owner. `charge_bytes` 0: another name of weights charged already;
    None: it cannot be charged.
    """

    model: ResidentModel
    ownership: Ownership
    worker_ids: tuple[str, ...]
    charge_bytes: int | None


@dataclass(frozen=True, slots=True)
class Residency:
    """All residents of a node. `foreign_bytes` is None where an entry is not accounted for."""

    models: tuple[ClassifiedModel, ...]
    own_bytes: int
    foreign_bytes: int | None
    unaccounted: bool
    warnings: tuple[str, ...]


def classify(
    snapshot: PsSnapshot,
    own_keys: Mapping[str, tuple[str, ...]],
    own_digests: Mapping[str, tuple[str, ...]],
    memory: Memory,
) -> Residency:
    """Own: the name's key is in the roster, or the digest is that of a roster model installed on
    that node. Everything else is foreign. Several names on one digest are one charge.

    `own_keys` and `own_digests` map to worker ids.
    """
    classified = [_owner(model, own_keys, own_digests) for model in snapshot.models]
    charges: dict[str, int] = {}
    for model, _, _ in classified:
        charge = model.charge_bytes(memory)
        if model.digest and charge is not None:
            charges[model.digest] = max(charge, charges.get(model.digest, 0))
    charged: set[str] = set()
    models = []
    for model, ownership, worker_ids in _ours_by_digest(classified):
        charge = model.charge_bytes(memory)
        if model.digest and charge is not None:
            charge = 0 if model.digest in charged else charges[model.digest]
            charged.add(model.digest)
        models.append(ClassifiedModel(model, ownership, worker_ids, charge))
    own = sum(entry.charge_bytes or 0 for entry in models if entry.ownership == "own")
    foreign = sum(entry.charge_bytes or 0 for entry in models if entry.ownership == "foreign")
    return Residency(
        models=tuple(models),
        own_bytes=own,
        foreign_bytes=None if snapshot.unaccounted else foreign,
        unaccounted=snapshot.unaccounted,
        warnings=snapshot.warnings,
    )


def _owner(
    model: ResidentModel,
    own_keys: Mapping[str, tuple[str, ...]],
    own_digests: Mapping[str, tuple[str, ...]],
) -> tuple[ResidentModel, Ownership, tuple[str, ...]]:
    by_name = own_keys.get(model.key, ())
    by_digest = own_digests.get(model.digest or "", ())
    worker_ids = tuple(sorted({*by_name, *by_digest}))
    if worker_ids:
        return model, "own", worker_ids
    return model, "foreign" if model.readable else "unknown", ()


def _ours_by_digest(
    classified: list[tuple[ResidentModel, Ownership, tuple[str, ...]]],
) -> list[tuple[ResidentModel, Ownership, tuple[str, ...]]]:
    """A stranger's name on weights that are resident as ours is ours: they are one runner."""
    own_digests = {model.digest for model, ownership, _ in classified if ownership == "own"}
    return [
        entry
        if entry[1] == "own" or entry[0].digest is None or entry[0].digest not in own_digests
        else (entry[0], "own", ())
        for entry in classified
    ]
