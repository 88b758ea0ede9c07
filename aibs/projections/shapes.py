"""Whether an event's data has what its type promises, asked once before any fold looks at it.

The types' models say what that is; this reads them once and then asks as cheaply as Python can,
because a fold over a long log cannot afford to build a model for each event. The answer is the
models' own strict one: no conversions, fields of later releases allowed.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from aibs.eventstore.events import EVENT_TYPES

Inner = Callable[[Any], None]
"""Looks into a value whose own kind is right. Raises Damaged."""

Kinds = frozenset[type]

_Look = tuple[str, Inner, bool]
"""A field to look into, how, and whether even when it is empty."""

OUTLINES_MAX = 256
"""A damaged log has no end of them."""

PRIORITIES = ("high", "normal", "low")


class Damaged(ValueError):
    """An event's data is not what its type promises: which field, what is wrong with it."""


class Shape:
    """What a JSON object must hold."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._fields: dict[str, tuple[bool, Kinds, Inner | None]] = {
            name: (field.is_required(), *_part(field.annotation))
            for name, field in model.model_fields.items()
        }
        self._known: dict[tuple[tuple[str, ...], tuple[type, ...]], tuple[_Look, ...]] = {}

    def check(self, data: dict[str, Any]) -> None:
        """Raises Damaged, naming the field."""
        try:
            # Names and kinds together: the same in nearly every event of a type.
            outline = (tuple(data), tuple(map(type, data.values())))
            looks = self._known[outline]
        except KeyError:
            looks = self._judge(data)
            if len(self._known) >= OUTLINES_MAX:
                self._known.clear()
            self._known[outline] = looks
        except (TypeError, AttributeError) as error:
            raise Damaged("the data is not an object") from error
        for name, inner, always in looks:
            value = data[name]
            if value or always:
                try:
                    inner(value)
                except Damaged as error:
                    raise Damaged(f"{name}: {error}") from error

    def _judge(self, data: dict[str, Any]) -> tuple[_Look, ...]:
        """What remains to be looked into, where every field is there and of its kind."""
        looks: list[_Look] = []
        for name, (required, kinds, inner) in self._fields.items():
            if name not in data:
                if required:
                    raise Damaged(f"{name} is missing")
                continue
            kind = type(data[name])
            if kinds and kind not in kinds:
                raise Damaged(f"{name} is {_kind_name(kind)}")
            if inner is not None and kind is not type(None):
                # An empty list has nothing inside; an empty object lacks what it must hold.
                looks.append((name, inner, kind is dict))
        return tuple(looks)


def _kind_name(kind: type) -> str:
    return {
        type(None): "null",
        str: "text",
        int: "a whole number",
        float: "a fraction",
        bool: "true or false",
        list: "a list",
        dict: "an object",
    }.get(kind, kind.__name__)


@lru_cache(maxsize=256)
def shape_of(model: type[BaseModel]) -> Shape:
    """The shape of a model's JSON."""
    return Shape(model)


def _part(annotation: Any) -> tuple[Kinds, Inner | None]:
    """The kinds of value that an annotation allows (none named: any), and what to ask inside."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = [_part(one) for one in get_args(annotation)]
        inner = [one for _, one in parts if one is not None]
        return frozenset().union(*(kinds for kinds, _ in parts)), inner[0] if inner else None
    if annotation in (str, int, bool, type(None)):
        return frozenset({annotation}), None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return frozenset({dict}), shape_of(annotation).check
    if origin is list:
        return frozenset({list}), _listed(get_args(annotation)[0])
    if origin is dict:
        return frozenset({dict}), _valued(get_args(annotation)[1])
    assert annotation is Any, annotation
    return frozenset(), None


def _listed(annotation: Any) -> Inner | None:
    kinds, inner = _part(annotation)

    def check(values: list[Any]) -> None:
        if kinds and not kinds.issuperset(map(type, values)):
            raise Damaged("has items of another kind")
        if inner is not None:
            for value in values:
                inner(value)

    return check


def _valued(annotation: Any) -> Inner | None:
    kinds, _ = _part(annotation)
    if not kinds:
        return None

    def check(values: dict[str, Any]) -> None:
        if not kinds.issuperset(map(type, values.values())):
            raise Damaged("has values of another kind")

    return check


def _renewed(data: dict[str, Any]) -> None:
    if len(data["leases"]) != len(data["deadlines"]):
        raise Damaged("deadlines are not as many as leases")


def _queued(data: dict[str, Any]) -> None:
    if data["waiter"].get("class") not in PRIORITIES:
        raise Damaged("waiter: class is not high, normal or low")


def _observed(data: dict[str, Any]) -> None:
    for model in data["models"]:
        keys = model.get("roster_keys")
        if keys is not None and (type(keys) is not list or not {str}.issuperset(map(type, keys))):
            raise Damaged("models: roster_keys is not a list of names")


_NODE_TEXTS = ("node_id", "base_url")
_NODE_NUMBERS = ("vram_budget_bytes", "max_parallel_requests")


def _declared(data: dict[str, Any]) -> None:
    nodes = data["fleet"].get("nodes", [])
    if type(nodes) is not list or not {dict}.issuperset(map(type, nodes)):
        raise Damaged("fleet: nodes is not a list of objects")
    for node in nodes:
        for name in _NODE_TEXTS:
            if type(node.get(name)) is not str:
                raise Damaged(f"fleet: a node's {name} is missing or not text")
        for name in _NODE_NUMBERS:
            # A budget that nobody declared is null.
            if type(node.get(name)) not in (int, type(None)):
                raise Damaged(f"fleet: a node's {name} is not a whole number")


BEYOND_THE_MODELS: dict[str, Callable[[dict[str, Any]], None]] = {
    "LeasesRenewed": _renewed,
    "LeaseQueued": _queued,
    "ResidencyObserved": _observed,
    "FleetDeclared": _declared,
}
"""What folds rely on and the models leave open."""


@lru_cache(maxsize=256)
def check_of(type_: str) -> Callable[[dict[str, Any]], None]:
    """The question whether data is of a known type's newest version. It raises Damaged."""
    shape = shape_of(EVENT_TYPES[type_]).check
    more = BEYOND_THE_MODELS.get(type_)
    if more is None:
        return shape

    def check(data: dict[str, Any]) -> None:
        shape(data)
        more(data)

    return check
