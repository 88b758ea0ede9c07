"""From what an application asks for to a request of the protocol. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, get_args

from aibs.codec import dumps
from aibs.lanes import lane_name
from aibs.model_names import InvalidModelName, parse
from aibs.placement.trust import margin_ms
from aibs.placement.values import AVOID_MAX, REQUEST_ID_BYTES_MAX, Class, Request
from aibs.settings.parsing import NAME_RULE, is_identifier

if TYPE_CHECKING:
    from collections.abc import Collection

    from aibs.placement.values import Session

CLASSES: Final[tuple[Class, ...]] = get_args(Class)
ASKED_KEPT: Final = 1024
"""Kinds of requests whose hash is kept: one application asks for few."""


@dataclass(frozen=True, slots=True)
class PlacerTiming:
    """Milliseconds. `wait_ms` is how long a request waits at most, and where it does not say;
    `grace_ms` how long the queue keeps a place whose process is not heard.
    """

    ttl_ms: int = 900_000
    heartbeat_ms: int = 30_000
    poll_ms: int = 100
    wait_ms: int = 300_000
    load_ms: int = 600_000
    grace_ms: int = 10_000


def request_of(
    session: Session,
    timing: PlacerTiming,
    *,
    model: str | None,
    role: str | None,
    priority: Class,
    timeout: float | None,
    ttl: float | None,
    request_id: str,
    requester: str | None,
    avoid: Collection[str] = (),
) -> Request:
    """The request, checked. Times in seconds. Raises ValueError with a sentence."""
    if not model and not role:
        raise ValueError("A lease is asked for with a model, a role, or both.")
    if priority not in CLASSES:
        raise ValueError(f"The priority is {priority!r}: it can be high, normal or low.")
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"The timeout is {timeout!r}: it is a number of seconds from 0 on.")
    _check_request_id(request_id)
    who = requester or session.holder
    if "|" in who or not who.isprintable() or len(who.encode()) > REQUEST_ID_BYTES_MAX:
        raise ValueError(
            f"The requester {who[:100]!r} has a | or an unprintable character in its name, or more "
            f"than {REQUEST_ID_BYTES_MAX} bytes."
        )
    if role and not is_identifier(role):
        # No roster has such a role, and a refusal of it would be told in the log.
        raise ValueError(f"The role {role[:100]!r} is no role's name. {NAME_RULE}")
    ttl_ms = timing.ttl_ms if ttl is None else _ttl_ms(ttl, timing)
    wait_ms = timing.wait_ms if timeout is None else round(min(timeout * 1000, timing.wait_ms))
    lane, shown, request_hash = _asked(model or None, role or None, priority, ttl_ms)
    return Request(
        request_id=request_id,
        environment=session.environment,
        holder=session.holder,
        requester=who,
        lane=lane,
        role=role or None,
        model=shown,
        priority=priority,
        ttl_ms=ttl_ms,
        wait_ms=wait_ms,
        request_hash=request_hash,
        avoid=_nodes(avoid) if avoid else (),
    )


@lru_cache(maxsize=ASKED_KEPT)
def _asked(
    model: str | None, role: str | None, priority: Class, ttl_ms: int
) -> tuple[str, str | None, str]:
    """The lane, the model's name to show, and the hash of what is asked for."""
    key, shown = _model(model)
    lane = lane_name(key, role)
    # Neither the wait nor the nodes to avoid are a part of it: a repetition has less of its wait
    # left, and may have learned of nodes that fail it.
    parts = {"lane": lane, "class": priority, "ttl_ms": ttl_ms}
    return lane, shown, hashlib.sha256(dumps(parts)).hexdigest()


def _model(model: str | None) -> tuple[str | None, str | None]:
    """The comparison key and the name to show."""
    if not model:
        return None, None
    try:
        name = parse(model)
    except InvalidModelName as error:
        raise ValueError(f"The model {model[:100]!r} is no model's name: {error}.") from error
    return name.key, name.display


def _nodes(avoid: Collection[str]) -> tuple[str, ...]:
    """Node ids, each once. They need not be declared."""
    names = {avoid} if isinstance(avoid, str) else set(avoid)
    if len(names) > AVOID_MAX:
        raise ValueError(f"The request avoids {len(names)} nodes: it can avoid {AVOID_MAX}.")
    for name in names:
        if not is_identifier(name):
            raise ValueError(f"The node {name[:100]!r} to avoid is no node's id. {NAME_RULE}")
    return tuple(sorted(names))


def _check_request_id(request_id: str) -> None:
    if not request_id or not request_id.isprintable():
        raise ValueError("The request_id is empty or has an unprintable character.")
    if len(request_id.encode()) > REQUEST_ID_BYTES_MAX:
        raise ValueError(f"The request_id is longer than {REQUEST_ID_BYTES_MAX} bytes.")


def _ttl_ms(ttl: float, timing: PlacerTiming) -> int:
    least_ms = timing.heartbeat_ms + margin_ms(timing.heartbeat_ms)
    if not least_ms < ttl * 1000 < 2**53:
        raise ValueError(
            f"The ttl is {ttl!r} s: it must outlast the heartbeat interval and its margin, "
            f"{least_ms / 1000:g} s."
        )
    return round(ttl * 1000)
