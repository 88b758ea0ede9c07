"""The metrics of the pool, out of what is known of it: a scrape reads no server and scans nothing.

Values of a node vanish with the node. What is not known now leaves its series out: while the pool
is away, nothing of now is told but that; counters stay.
"""

from __future__ import annotations

import platform
from collections import Counter as Tally
from typing import TYPE_CHECKING, Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from aibs.gateway.control.health import VERSION
from aibs.gateway.control.tally import OTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from aibs.gateway.control.follower import Folded
    from aibs.gateway.control.names import ModelNames
    from aibs.gateway.control.pool_view import PoolView
    from aibs.gateway.control.tally import Count, Spread
    from aibs.gateway.control.watch import PoolWatch
    from aibs.projections.node_capacity import NodeCapacity

    Values = Sequence[tuple[tuple[str, ...], float]]


def build_info() -> Metric:
    """What runs here."""
    found = _gauge("aibs_build_info", "What runs here.", ("version", "python"))
    found.add_metric((VERSION, platform.python_version()), 1)
    return found


def pool_metrics(watch: PoolWatch, names: ModelNames) -> Iterator[Metric]:
    """All metrics of the pool, as they are now."""
    view, now_ms = watch.fresh_view(), watch.server_now_ms()
    up = _gauge("aibs_coordination_up", "Whether the pool answers.", ("pool",))
    up.add_metric((watch.link.keys.namespace,), 0 if view is None else 1)
    yield up
    yield from _of_view(view, now_ms)
    folded = watch.follower.folded if watch.follower.current and view is not None else None
    yield from _of_nodes(folded, now_ms)
    yield from _of_models(folded, view, names)
    yield from _of_leases(folded, names)
    yield from _counted(watch)


def _of_view(view: PoolView | None, now_ms: int | None) -> Iterator[Metric]:
    length = _gauge("aibs_log_length", "Events that the log holds.")
    fence = _gauge("aibs_owner_fence", "The newest fence.")
    left = _gauge("aibs_owner_lease_remaining_seconds", "How long the owner's term lasts.")
    if view is not None and now_ms is not None:
        length.add_metric((), view.log_length)
        if view.term is not None:
            fence.add_metric((), view.term.fence)
            if view.term.alive(now_ms):
                left.add_metric((), (view.term.deadline_ms - now_ms) / 1000)
    yield from (length, fence, left)
    yield from _of_stamps(view, now_ms)


def _of_stamps(view: PoolView | None, now_ms: int | None) -> Iterator[Metric]:
    node = ("node",)
    up = _gauge("aibs_node_up", "Whether the node answered its newest poll.", node)
    healthy = _gauge("aibs_node_healthy", "Whether the node is held to be healthy.", node)
    cordoned = _gauge("aibs_node_cordoned", "Whether an operator keeps the node closed.", node)
    tripped = _gauge("aibs_node_tripped", "Whether failures keep the node closed.", node)
    age = _gauge("aibs_node_stamp_age_seconds", "How old the newest good poll is.", node)
    foreign = _gauge("aibs_node_foreign_bytes", "What others hold there.", node)
    own = _gauge("aibs_node_own_resident_bytes", "What our models hold there.", node)
    if view is not None and now_ms is not None:
        for node_id in view.fleet.nodes:
            label = (node_id,)
            cordoned.add_metric(label, view.cordoned(node_id, now_ms))
            tripped.add_metric(label, node_id in view.trips)
            stamp = view.stamps.get(node_id)
            if stamp is None:
                # Never polled under its present URL.
                continue
            up.add_metric(label, stamp.failed_in_row == 0)
            if stamp.healthy is not None:
                healthy.add_metric(label, stamp.healthy)
            if stamp.observed_at_ms:
                age.add_metric(label, (now_ms - stamp.observed_at_ms) / 1000)
            if stamp.foreign_bytes is not None and not stamp.unaccounted:
                foreign.add_metric(label, stamp.foreign_bytes)
            if stamp.own_bytes is not None:
                own.add_metric(label, stamp.own_bytes)
    yield from (up, healthy, cordoned, tripped, age, foreign, own)


_CAPACITY: tuple[tuple[str, str, Callable[[NodeCapacity], int | None]], ...] = (
    ("aibs_node_budget_bytes", "Memory that the node may be given.", lambda n: n.budget_bytes),
    ("aibs_node_leased_bytes", "Weights of leased models.", lambda n: n.leased_bytes),
    ("aibs_node_slots", "Requests that may run at a time.", lambda n: n.slots),
    ("aibs_node_slots_used", "Slots that leases and drains take.", lambda n: n.slots_used),
)


def _of_nodes(folded: Folded | None, now_ms: int | None) -> Iterator[Metric]:
    nodes: tuple[NodeCapacity, ...] = ()
    if folded is not None and now_ms is not None:
        nodes = folded.capacity.at(now_ms)
    for name, about, value_of in _CAPACITY:
        found = _gauge(name, about, ("node",))
        for node in nodes:
            value = value_of(node)
            if value is not None:
                found.add_metric((node.node_id,), value)
        yield found


def _of_models(folded: Folded | None, view: PoolView | None, names: ModelNames) -> Iterator[Metric]:
    found = _gauge(
        "aibs_model_resident_bytes",
        "What a model holds on a node.",
        ("node", "model", "ownership"),
    )
    sizes: Tally[tuple[str, str, str]] = Tally()
    if folded is not None and view is not None:
        for node_id, node in folded.coordination.residency.nodes.items():
            if node_id not in view.fleet.nodes:
                continue
            for model in node.resident:
                size = model["charge_bytes"]
                if size is not None:
                    sizes[node_id, _name_of(model, names), model["ownership"]] += size
    for labels, size in sizes.items():
        found.add_metric(labels, size)
    yield found


def _name_of(model: dict[str, Any], names: ModelNames) -> str:
    """The roster's name: an alias is known by what its digest is there."""
    for key in (model["key"], *(model.get("roster_keys") or ())):
        name = names.of_key(key)
        if name != OTHER:
            return name
    return OTHER


def _of_leases(folded: Folded | None, names: ModelNames) -> Iterator[Metric]:
    active = _gauge("aibs_leases_active", "Living leases.", ("node", "model"))
    depth = _gauge("aibs_queue_depth", "Requests that wait.", ("model", "priority"))
    leases: Tally[tuple[str, str]] = Tally()
    waiting: Tally[tuple[str, str]] = Tally()
    if folded is not None:
        for lease in folded.coordination.leases.living.values():
            leases[lease.stored["node_id"], names.of_key(lease.stored["key"])] += 1
        for waiter in folded.coordination.queue.waiters.values():
            waiting[names.of(str(waiter.document["model"])), waiter.priority] += 1
    for found, counts in ((active, leases), (depth, waiting)):
        for labels, count in counts.items():
            found.add_metric(labels, count)
        yield found


def _counted(watch: PoolWatch) -> Iterator[Metric]:
    totals, polls = watch.follower.totals, watch.polls
    yield _counter("aibs_log_events", "Events of the log.", totals.events)
    yield _counter("aibs_owner_elections", "Terms that began.", totals.elections)
    yield _counter(
        "aibs_fenced_writes_rejected",
        "Writes refused because their writer's term was over.",
        totals.rejected_writes,
    )
    yield _histogram("aibs_node_poll_duration_seconds", "How long polls took.", polls.durations)
    yield _counter("aibs_node_poll_failures", "Polls that failed.", polls.failures)
    yield _counter("aibs_model_loads", "Loads of models for leases.", totals.loads)
    yield _histogram(
        "aibs_model_load_duration_seconds", "How long loads took.", totals.load_durations
    )
    yield _counter("aibs_leases", "Leases that ended.", totals.leases)
    yield _histogram("aibs_lease_held_seconds", "How long leases were held.", totals.held)
    yield _counter("aibs_leases_leaked", "Leases that nobody gave back.", totals.leaked)


def _gauge(name: str, about: str, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, labels=labels)


def _counter(name: str, about: str, count: Count) -> Metric:
    found = CounterMetricFamily(name, about, labels=count.labels)
    for labels, value in count.items():
        found.add_metric(labels, value)
    return found


def _histogram(name: str, about: str, spread: Spread) -> Metric:
    found = HistogramMetricFamily(name, about, labels=spread.labels)
    for labels, buckets, total in spread.items():
        found.add_metric(labels, buckets, total)
    return found
