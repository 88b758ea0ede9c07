"""What a request asks for: a roster model, a role, or both. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.model_names import InvalidModelName, parse_reference

if TYPE_CHECKING:
    from aibs.fleet import Fleet, Worker

ROLE_PREFIX = "aibs/"
"""`aibs/<role>` as the model asks for a role."""


class NoTarget(Exception):
    """Nothing of the roster is asked for. `reason` is `unknown_model`, `bad_request` or, of a model
    of it that no node has, `not_installed`."""

    def __init__(self, sentence: str, status: int, reason: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Target:
    """`workers` may serve it, by this process's fleet. `spelled`: the name as the client wrote
    it, which the node gets and echoes; None: the roster's name.
    """

    model: str | None
    role: str | None
    workers: tuple[Worker, ...]
    spelled: str | None


class Targets:
    """Finds targets in a fleet's roster."""

    def __init__(self, fleet: Fleet) -> None:
        self._by_key = fleet.workers_by_key
        self._by_role: dict[str, tuple[Worker, ...]] = {}
        for worker in fleet.workers:
            for role in dict.fromkeys(worker.roles):
                self._by_role[role] = (*self._by_role.get(role, ()), worker)

    @property
    def roles(self) -> dict[str, tuple[Worker, ...]]:
        """Every role and its workers."""
        return self._by_role

    def find(self, model: object, role: str | None) -> Target:
        """The target of a body's `model` and of the role's header. Raises NoTarget."""
        if model is not None and not isinstance(model, str):
            raise NoTarget("model must be a string", 400, "bad_request")
        if role is not None and role not in self._by_role:
            raise NoTarget(f"role {role[:100]!r} is not in the roster", 404, "unknown_model")
        if not model:
            if role is None:
                raise NoTarget("model is required", 400, "bad_request")
            return Target(None, role, self._by_role[role], None)
        known = self._known(model)
        if known:
            found, spelled = known
            if role is not None:
                found = tuple(worker for worker in found if role in worker.roles)
                if not found:
                    raise NoTarget(
                        f"model {model[:200]!r} has no role {role!r} in the roster",
                        404,
                        "unknown_model",
                    )
            return Target(found[0].model, role, found, spelled)
        named = role_of(model)
        if named is not None and role in (None, named) and named in self._by_role:
            return Target(None, named, self._by_role[named], None)
        raise NoTarget(f"model {model[:200]!r} not found in the roster", 404, "unknown_model")

    def _known(self, model: str) -> tuple[tuple[Worker, ...], str | None] | None:
        """The workers of a model's name, and the name to send on."""
        try:
            reference = parse_reference(model)
        except InvalidModelName as error:
            if role_of(model) is not None:
                return None
            raise NoTarget(f"invalid model name: {error}", 400, "bad_request") from error
        if reference.source == "cloud":
            # It would leave the fleet, which nothing was granted for.
            return None
        found = self._by_key.get(reference.name.key)
        if not found:
            return None
        # A name with a source or white space is read otherwise by releases before 0.18.
        plain = reference.source == "any" and model == model.strip()
        return found, model if plain else None


def role_of(model: str) -> str | None:
    """The role that a model's name asks for; None where it asks for none."""
    if model[: len(ROLE_PREFIX)].lower() != ROLE_PREFIX:
        return None
    role = model[len(ROLE_PREFIX) :].removesuffix(":latest")
    return role or None
