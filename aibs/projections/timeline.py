"""One readable clause for each event. Pure; what it does not know it shows as it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.codec import bytes_to_gb, dumps_text, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aibs.eventstore.events.envelope import Event

UNKNOWN_SHOWN_MAX = 120
NAMES_MAX = 8


def describe(event: Event) -> str:
    """The event as a clause, without its time and actor."""
    wording = _WORDING.get(event.type)
    if wording is None:
        return _as_stored(event)
    try:
        return wording(event.data)
    except (KeyError, TypeError, ValueError, AttributeError):
        # Another version's fields, or a damaged entry: shown, never a crash.
        return _as_stored(event)


def _as_stored(event: Event) -> str:
    text = dumps_text(event.data)
    return text if len(text) <= UNKNOWN_SHOWN_MAX else f"{text[:UNKNOWN_SHOWN_MAX]}…"


def _gb(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{bytes_to_gb(size_bytes):.12g} GB"


def _lasted(duration_ms: int) -> str:
    """`0.3 s`, `75 s`, `12 min`, `3 h`."""
    if abs(duration_ms) < 10_000:
        return f"{duration_ms / 1000:.12g} s"
    for limit_ms, unit_ms, unit in ((120_000, 1000, "s"), (7_200_000, 60_000, "min")):
        if abs(duration_ms) < limit_ms:
            return f"{round(duration_ms / unit_ms)} {unit}"
    return f"{round(duration_ms / 3_600_000)} h"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _names(found: Sequence[str]) -> str:
    shown = ", ".join(found[:NAMES_MAX])
    return shown if len(found) <= NAMES_MAX else f"{shown} and {len(found) - NAMES_MAX} more"


def _words(code: str) -> str:
    """A reason code as words. What a person wrote stays as it is."""
    return code if " " in code else code.replace("_", " ")


def _request(request_key: str) -> str:
    """`r1 of env` from `env|holder|r1`."""
    environment, _, rest = request_key.partition("|")
    _, _, request_id = rest.partition("|")
    return f"request {request_id} of {environment}" if request_id else f"request {request_key}"


def _lane(name: str) -> str:
    """What a lane's name asks for: `llama3:8b as answer`."""
    kind, _, rest = name.partition("|")
    key, _, role = rest.partition("|") if kind == "mr" else (rest, "", "")
    if kind == "r":
        return f"role {rest}"
    model = key.removeprefix("registry.ollama.ai/").removeprefix("library/")
    return f"{model} as {role}" if role else model


def _elected(data: dict[str, Any]) -> str:
    who = f"{data['owner']} holds the term with fence {data['fence']}"
    if data["follows"] is None:
        return who
    return f"{who}, after {data['follows']}: {_words(data['because'])}"


def _term_over(data: dict[str, Any]) -> str:
    how = {
        "expired": "it was not renewed in time",
        "pool_suspect": "the server may have lost writes",
    }.get(data["how"], _words(data["how"]))
    return f"the term of {data['owner']} with fence {data['fence']} is over: {how}"


def _fenced(data: dict[str, Any]) -> str:
    again = f", and {data['repeats']} times before" if data["repeats"] else ""
    current = data["current_owner"] or "nobody"
    return (
        f"{data['script']} of {data['owner']} was refused: its fence is {data['fence']}, "
        f"the current one is {data['current_fence']} of {current}{again}"
    )


def _stepped(data: dict[str, Any]) -> str:
    way = "forward" if data["delta_ms"] > 0 else "back"
    return f"the server's clock stepped {way} by {_lasted(abs(data['delta_ms']))}"


def _observed(data: dict[str, Any]) -> str:
    models = _names([f"{m['name']} ({m['ownership']})" for m in data["models"]]) or "nothing"
    state = "" if data["healthy"] else f", unhealthy: {_words(data['reason'])}"
    return (
        f"{data['node_id']} holds {models}: own {_gb(data['own_bytes'])}, "
        f"foreign {_gb(data['foreign_bytes'])}{state}"
    )


def _health(data: dict[str, Any]) -> str:
    if data["healthy"]:
        return f"{data['node_id']} is healthy again"
    times = _count(data["failed_in_row"], "poll")
    return f"{data['node_id']} is unhealthy: {times} failed in a row, {_words(data['reason'])}"


def _acquired(data: dict[str, Any]) -> str:
    lease, evidence = data["lease"], data["evidence"]
    role = f" as {lease['role']}" if lease["role"] else ""
    found = "already loaded" if lease["warm"] else "to be loaded"
    waited = f", after {_lasted(lease['queue_ms'])} in the queue" if lease["queue_ms"] else ""
    unload = lease["unload_first"]
    room = f", {_count(len(unload), 'model')} to be unloaded first" if unload else ""
    return (
        f"{lease['model']}{role} is leased on {lease['node_id']} to {lease['holder']} of "
        f"{lease['environment']} as {lease['lease_id']}: {_gb(lease['weight_bytes'])}, {found}, "
        f"slot {evidence['slots_used_after']} of {evidence['slots']}{room}{waited}"
    )


def _refusals(data: dict[str, Any]) -> str:
    told = [
        f"{one['node_id']}: {_words(one['reason'].removeprefix('node_'))}"
        for one in data["reasons"]
    ]
    told += [
        f"{_count(number, 'more node')}: {_words(reason.removeprefix('node_'))}"
        for reason, number in sorted(data["others"].items())
    ]
    return f" ({_names(told)})" if told else ""


def _denied(data: dict[str, Any]) -> str:
    return (
        f"request {data['request_id']} of {data['environment']} for {_lane(data['lane'])} is "
        f"denied: {_words(data['reason'])}{_refusals(data)}"
    )


def _denials(data: dict[str, Any]) -> str:
    return (
        f"{_count(data['count'], 'more equal denial')} in {data['environment']} for "
        f"{_lane(data['lane'])}: {_words(data['reason'])}"
    )


def _renewed(data: dict[str, Any]) -> str:
    return f"{data['holder']} renews {_count(len(data['leases']), 'lease')}"


def _loaded(data: dict[str, Any]) -> str:
    if data["outcome"] != "ok":
        return (
            f"{data['model']} could not be loaded on {data['node_id']} "
            f"({_lasted(data['ms'])}): {_words(data['outcome'])}"
        )
    return f"{data['model']} is loaded on {data['node_id']} after {_lasted(data['ms'])}"


def _unloaded(data: dict[str, Any]) -> str:
    room = f"on {data['node_id']} to make room for lease {data['lease_id']}"
    if data["outcome"] != "ok":
        return f"{data['model']} could not be unloaded {room}: {_words(data['outcome'])}"
    return f"{data['model']} is unloaded {room}"


def _reaped(data: dict[str, Any]) -> str:
    slot = "its slot drains" if data["drained"] else "its slot is free"
    return (
        f"lease {data['lease_id']} on {data['node_id']} is reaped by {data['by']} after "
        f"{_lasted(data['held_ms'])}: {_words(data['why'])}; {slot}"
    )


def _queued(data: dict[str, Any]) -> str:
    waiter = data["waiter"]
    role = f" as {waiter['role']}" if waiter["role"] else ""
    return (
        f"request {waiter['request_id']} of {waiter['environment']} waits for "
        f"{waiter['model']}{role}: {_words(data['reason'])}{_refusals(data)}"
    )


def _wait_ended(data: dict[str, Any]) -> str:
    how = {
        "granted": "it got a lease",
        "cancelled": "it was cancelled",
        "forgotten": "its process fell silent",
        "timed_out": "its time was over",
        "refused": "it was refused",
    }.get(data["how"], _words(data["how"]))
    return (
        f"{_request(data['request_key'])} waits no more after {_lasted(data['waited_ms'])}: {how}"
    )


def _reserved(data: dict[str, Any]) -> str:
    return (
        f"{data['node_id']} is reserved for {_request(data['request_key'])}, which needs "
        f"{_gb(data['weight_bytes'])}: {_words(data['why'])}"
    )


def _reservation_ended(data: dict[str, Any]) -> str:
    how = {
        "granted": "it got its lease",
        "wait_ended": "it waits no more",
        "node_ineligible": "the node takes no leases now",
    }.get(data["how"], _words(data["how"]))
    return f"{data['node_id']} is no longer reserved for {_request(data['request_key'])}: {how}"


def _cordoned(data: dict[str, Any]) -> str:
    until = "" if data["until_ms"] is None else f" until {rfc3339(data['until_ms'])}"
    return f"{data['node_id']} is cordoned by {data['by']}{until}: {data['why']}"


def _forgotten(data: dict[str, Any]) -> str:
    return (
        f"{data['by']} dropped what {_count(len(data['keys']), 'model')} were seen to weigh on "
        f"{data['node_id']}"
    ).replace("1 model were", "1 model was")


_WORDING: dict[str, Callable[[dict[str, Any]], str]] = {
    "PoolCreated": lambda d: f"pool {d['pool_id']} begins",
    "PoolSuspect": lambda d: f"the pool is suspect: {_words(d['why'])}",
    "PoolReopened": lambda d: f"the pool is open again: {_words(d['why'])}",
    "PoolClosed": lambda _: "the server was stopped in good order",
    "FleetDeclared": lambda d: (
        f"fleet revision {d['revision']} is declared: {_count(len(d['fleet']['nodes']), 'node')}, "
        f"{_count(len(d['fleet']['workers']), 'worker')}, fingerprint {d['fingerprint'][:12]}"
    ),
    "OwnerElected": _elected,
    "OwnerResigned": lambda d: f"{d['owner']} gave back the term with fence {d['fence']}",
    "OwnerExpired": _term_over,
    "FencedWriteRejected": _fenced,
    "ClockStepped": _stepped,
    "ResidencyObserved": _observed,
    "NodeHealthChanged": _health,
    "LeaseAcquired": _acquired,
    "LeaseDenied": _denied,
    "DenialsCounted": _denials,
    "LeasesRenewed": _renewed,
    "ModelLoading": lambda d: (
        f"{d['model']} is being loaded on {d['node_id']} for lease {d['lease_id']}"
    ),
    "ModelLoaded": _loaded,
    "ModelUnloaded": _unloaded,
    "LeaseReleased": lambda d: (
        f"lease {d['lease_id']} on {d['node_id']} is given back after {_lasted(d['held_ms'])}: "
        f"{d['outcome']}"
    ),
    "LeaseExpired": lambda d: (
        f"lease {d['lease_id']} on {d['node_id']} expired after {_lasted(d['held_ms'])}: nobody "
        "renewed it or gave it back; its slot drains"
    ),
    "LeaseRevoked": lambda d: (
        f"{d['by']} took lease {d['lease_id']} on {d['node_id']} back: {d['why']}"
    ),
    "LeaseReaped": _reaped,
    "LateRelease": lambda d: (
        f"lease {d['lease_id']} was given back ({d['outcome']}) after it had been {d['ended_by']}"
    ).replace("had been expired", "had expired"),
    "DoubleRelease": lambda d: (
        f"lease {d['lease_id']} was given back twice, by calls {d['first_call_id']} and "
        f"{d['call_id']}"
    ),
    "LeakAcknowledged": lambda d: (
        f"{d['by']} knows of {_count(len(d['leases']), 'leak')}: {_names(d['leases'])}"
    ),
    "LeaseQueued": _queued,
    "WaitEnded": _wait_ended,
    "NodeReserved": _reserved,
    "ReservationEnded": _reservation_ended,
    "NodeCordoned": _cordoned,
    "NodeUncordoned": lambda d: f"{d['node_id']} takes leases again, by {d['by']}",
    "NodeTripped": lambda d: (
        f"{d['node_id']} takes no leases: its answers failed ({_words(d['why'])}); it is tried "
        f"again after {_lasted(d['backoff_ms'])}"
    ),
    "NodeRestored": lambda d: f"{d['node_id']} answers again: the lease that tried it completed",
    "WeightsForgotten": _forgotten,
    "WarmupMeasured": lambda d: (
        f"{d['by']} measured {d['model']} on {d['node_id']}: {_gb(d['size_bytes'])}"
        + ("" if d["ms"] is None else f", loaded in {_lasted(d['ms'])}")
    ),
    "SessionOpened": lambda d: (
        f"{d['holder']} of {d['environment']} is there: process {d['pid']} on {d['host']}"
    ),
    "SessionEnded": lambda d: f"{d['holder']} is gone: {_words(d['why'])}",
    "SnapshotTaken": lambda d: (
        f"snapshot {d['snapshot_id']} keeps what the log told up to event {d['upto_seq']}"
    ),
    "LogTrimmed": lambda d: (
        f"the log's {_count(d['removed'], 'oldest event')} up to {d['upto_seq']} are gone, for its "
        f"{_words(d['why'])}; snapshot {d['snapshot_id']} stands in for them"
    ),
}
