"""Where a request's models are installed, and what is told where they are on no node.

A model of the roster that no node has is a state of the fleet, which an operator mends; a name
that is not in the roster is the client's mistake. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aibs.fleet import Fleet
    from aibs.gateway.targets import Target

    Missing = Collection[tuple[str, str]]
    """Nodes, each with the comparison key of a model that it has not."""

NOT_INSTALLED = "not_installed"

NAMED_MAX = 8


def places_of(fleet: Fleet, target: Target) -> dict[str, frozenset[str]]:
    """The nodes that a target may run on, each with the keys of its models there."""
    found: dict[str, set[str]] = {}
    for worker in target.workers:
        allowed = {node.node_id for node in fleet.allowed_nodes(worker)}
        if target.role is not None:
            allowed &= {node.node_id for node in fleet.nodes_for_role(target.role)}
        for node_id in allowed:
            found.setdefault(node_id, set()).add(worker.key)
    return {node_id: frozenset(found[node_id]) for node_id in sorted(found)}


def nodes_without(places: Mapping[str, frozenset[str]], missing: Missing) -> set[str]:
    """The nodes that have none of the models."""
    return {
        node_id
        for node_id, keys in places.items()
        if all((node_id, key) in missing for key in keys)
    }


def named(target: Target, missing: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """What is missing, by the roster's names."""
    models = {worker.key: worker.model for worker in target.workers}
    found: dict[str, list[str]] = {}
    for node_id, key in sorted(set(missing)):
        if key in models:
            found.setdefault(models[key], []).append(node_id)
    return found


def not_installed(where: Mapping[str, Sequence[str]]) -> str:
    """The sentence for models that are missing on these nodes, with the mend."""
    if not where:
        return "No node of the fleet may run it."
    missing = ", ".join(
        f"{model} is not installed on {_listed(nodes)}" for model, nodes in where.items()
    )
    pulls = ", or ".join(
        f"`ollama pull {model}` on {'one of ' if len(nodes) > 1 else ''}{_listed(nodes)}"
        for model, nodes in where.items()
    )
    return f"{missing}: run {pulls}."


def _listed(nodes: Sequence[str]) -> str:
    """`box-a, box-b and 3 more`."""
    shown, rest = list(nodes[:NAMED_MAX]), len(nodes) - NAMED_MAX
    if rest > 0:
        shown.append(f"{rest} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
