"""A log as a week of a busy fleet leaves it, written past the scripts: for benchmarks alone.

Every event has the fields and the JSON that the scripts write, under explicit IDs of that week.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import orjson

from aibs.fleet import Fleet, Node, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from aibs.eventstore.keys import Keys

GB = 10**9
WEEK_MS = 604_800_000
PIPELINED = 2_000
MODELS = (("llama3.3:70b", 47), ("qwen3:30b", 19), ("nomic-embed-text", 1))
ENVIRONMENTS = ("prod", "staging", "research")
NODES = tuple(f"box-{letter}" for letter in "abcdef")
FINGERPRINT = "6f1c" * 16

Told = tuple[str, dict[str, Any], str]
"""Type, data, token."""


def _key(model: str) -> str:
    return f"registry.ollama.ai/library/{model if ':' in model else model + ':latest'}"


def fleet() -> Fleet:
    """Six boxes and three models."""
    return Fleet(
        nodes=tuple(
            Node(name, f"http://10.4.3.{16 + place}:11434", 104 * GB, 4)
            for place, name in enumerate(NODES)
        ),
        workers=tuple(
            Worker(f"worker-{place}", name, ("answer",), resident_weight_bytes=gb * GB)
            for place, (name, gb) in enumerate(MODELS)
        ),
    )


class _Story:
    """Who holds what now; each step tells the next events."""

    def __init__(self, seed: int) -> None:
        self._pick = random.Random(seed)  # noqa: S311 - a benchmark's variety
        self._urls = {node.node_id: node.base_url for node in fleet().nodes}
        self._held: list[dict[str, Any]] = []
        self._number = 0
        self.at_ms = 0

    def opening(self) -> list[Told]:
        declared = fleet()
        return [
            (
                "PoolCreated",
                {"pool_id": "bench", "run_id": "b" * 40, "state_version": "1", "epoch": 0},
                "",
            ),
            (
                "OwnerElected",
                {
                    "owner": "mon-1:412:monitor:9f3a6c01",
                    "fence": 1,
                    "ttl_ms": 8_000,
                    "deadline_ms": self.at_ms + 8_000,
                    "follows": None,
                    "follows_fence": None,
                    "because": "vacant",
                },
                "",
            ),
            (
                "FleetDeclared",
                {
                    "revision": 0,
                    "fingerprint": FINGERPRINT,
                    "fleet": declared.document(),
                    "changes": [],
                },
                "",
            ),
            *[self._observed(node) for node in NODES],
        ]

    def step(self) -> list[Told]:
        """One thing that happens, as one to three events."""
        roll = self._pick.random()
        if self._held and (len(self._held) > 20 or roll < 0.36):
            return [self._ended()]
        if roll < 0.40:
            return [self._observed(self._pick.choice(NODES))]
        if self._held and roll < 0.52:
            return [self._renewed()]
        if roll < 0.56:
            return [self._denied()]
        return self._asked(waits=roll < 0.66, cold=roll > 0.95)

    def _observed(self, node_id: str) -> Told:
        models: list[dict[str, Any]] = [
            {
                "name": name,
                "key": _key(name),
                "digest": f"{place}a" * 32,
                "size_bytes": gb * GB,
                "size_vram_bytes": gb * GB,
                "context_length": 8192,
                "placement": "gpu",
                "ownership": "own",
                "worker_ids": [f"worker-{place}"],
                "keeps_forever": False,
                "expires_at_ms": self.at_ms + 300_000,
                "charge_bytes": gb * GB,
                "roster_keys": [_key(name)],
            }
            for place, (name, gb) in enumerate(MODELS[: 1 + self._pick.randrange(3)])
        ]
        data = {
            "node_id": node_id,
            "base_url": self._urls[node_id],
            "fingerprint": FINGERPRINT,
            "observed_at_ms": self.at_ms - 12,
            "elapsed_ms": 12,
            "latency_ms": 11,
            "own_bytes": sum(model["charge_bytes"] for model in models),
            "foreign_bytes": 0,
            "unaccounted": False,
            "healthy": True,
            "reason": "",
            "busy": [],
            "models": models,
        }
        return "ResidencyObserved", data, ""

    def _request(self) -> tuple[str, str, str, str, int]:
        self._number += 1
        environment = self._pick.choice(ENVIRONMENTS)
        request_id = f"req-{self._number:010x}"
        place = self._pick.randrange(3)
        return f"{environment}|api|{request_id}", environment, request_id, MODELS[place][0], place

    def _asked(self, *, waits: bool, cold: bool) -> list[Told]:
        request_key, environment, request_id, model, place = self._request()
        holder = f"api-{self._number % 8}:77:placer:0c4e91d{self._number % 8}"
        told: list[Told] = []
        waited_ms = self._pick.randrange(20, 9_000) if waits else 0
        if waits:
            told += self._waited(request_key, environment, request_id, model, holder, waited_ms)
        node_id = self._pick.choice(NODES)
        weight = MODELS[place][1] * GB
        lease_id = f"{self._number:016x}"
        lease: dict[str, Any] = {
            "lease_id": lease_id,
            "token": str(self._number),
            "request_key": request_key,
            "request_id": request_id,
            "request_hash": "5b1f0c9e77aa21d4",
            "call_id": f"{self._number:08x}",
            "environment": environment,
            "holder": holder,
            "requester": "api",
            "model": model,
            "key": _key(model),
            "worker_id": f"worker-{place}",
            "role": None,
            "node_id": node_id,
            "base_url": self._urls[node_id],
            "weight_bytes": weight,
            "params": 70_600,
            "ttl_ms": 900_000,
            "drain_ms": 10_000,
            "acquired_at_ms": self.at_ms,
            "probe": False,
            "warm": not cold,
            "unload_first": [],
            "queue_ms": waited_ms,
        }
        evidence = {
            "stamp_age_ms": 1_204,
            "observed_at_ms": self.at_ms - 1_204,
            "stamp_fence": 1,
            "stamp_seq": self._number,
            "budget_bytes": 104 * GB,
            "foreign_bytes": 0,
            "leased_before_bytes": 0,
            "leased_after_bytes": weight,
            "slots": 4,
            "slots_used_before": 0,
            "slots_used_after": 1,
            "weight_bytes": weight,
            "weight_source": "declared",
            "fingerprint": FINGERPRINT,
            "nodes_tried": 2,
            "passed": [],
        }
        data = {
            "lease": lease,
            "deadline_ms": self.at_ms + 900_000,
            "evidence": evidence,
            "next": [],
        }
        told.append(("LeaseAcquired", data, str(self._number)))
        self._held.append(lease)
        if cold:
            load = {"lease_id": lease_id, "node_id": node_id, "model": _key(model)}
            told.append(("ModelLoading", {**load, "ms": 0, "outcome": "ok"}, str(self._number)))
            told.append(("ModelLoaded", {**load, "ms": 8_120, "outcome": "ok"}, str(self._number)))
        return told

    def _waited(
        self,
        request_key: str,
        environment: str,
        request_id: str,
        model: str,
        holder: str,
        waited_ms: int,
    ) -> list[Told]:
        waiter = {
            "request_key": request_key,
            "request_id": request_id,
            "request_hash": "5b1f0c9e77aa21d4",
            "environment": environment,
            "holder": holder,
            "requester": "api",
            "role": None,
            "lane": f"m|{_key(model)}",
            "member": f"{self._number:010d}\x01{request_key}",
            "number": self._number,
            "arrival_ms": self.at_ms,
            "wait_deadline_ms": self.at_ms + 300_000,
            "ttl_ms": 900_000,
            "model": model,
            "lanes": [{"worker_id": "worker-0", "key": _key(model)}],
            "class": "normal",
        }
        reasons = [
            {"node_id": node, "reason": "no_slot", "missing_bytes": None, "wait_ms": 900}
            for node in NODES[:3]
        ]
        queued = {"waiter": waiter, "reason": "no_slot", "reasons": reasons, "others": {}}
        ended = {"request_key": request_key, "how": "granted", "waited_ms": waited_ms}
        return [("LeaseQueued", queued, ""), ("WaitEnded", ended, "")]

    def _ended(self) -> Told:
        lease = self._held.pop(self._pick.randrange(len(self._held)))
        end = {
            "lease_id": lease["lease_id"],
            "node_id": lease["node_id"],
            "request_key": lease["request_key"],
            "held_ms": 14_307,
        }
        if self._pick.random() < 0.01:
            return "LeaseExpired", {**end, "deadline_ms": self.at_ms}, lease["token"]
        more = {"outcome": "completed", "call_id": "r" + lease["call_id"], "next": []}
        return "LeaseReleased", {**end, **more}, lease["token"]

    def _renewed(self) -> Told:
        held = self._held[-6:]
        data = {
            "holder": held[0]["holder"],
            "leases": [lease["lease_id"] for lease in held],
            "deadlines": [self.at_ms + 900_000] * len(held),
        }
        return "LeasesRenewed", data, ""

    def _denied(self) -> Told:
        _, environment, request_id, model, _ = self._request()
        data = {
            "environment": environment,
            "requester": "api",
            "request_id": request_id,
            "lane": f"m|{_key(model)}",
            "reason": "no_memory",
            "reasons": [
                {"node_id": node, "reason": "no_memory", "missing_bytes": 12 * GB}
                for node in NODES[:2]
            ],
            "others": {"no_slot": 4},
        }
        return "LeaseDenied", data, ""


def stories(count: int, ends_at_ms: int, seed: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """So many entries: ID and fields, spread over the week before `ends_at_ms`."""
    story = _Story(seed)
    begun_ms, seq = ends_at_ms - WEEK_MS, 0
    story.at_ms = begun_ms
    todo = story.opening()
    while seq < count:
        for type_, data, token in todo:
            if seq == count:
                return
            seq += 1
            monitored = type_ in ("ResidencyObserved", "OwnerElected", "FleetDeclared")
            yield (
                f"{story.at_ms}-{seq}",
                {
                    "type": type_,
                    "v": 1,
                    "seq": seq,
                    "at_ms": story.at_ms,
                    "actor": "mon-1:412:monitor:9f3a6c01" if monitored else "api-1:77:placer:0c4e",
                    "fence": 1 if monitored else "",
                    "token": token,
                    "data": orjson.dumps(data),
                },
            )
        story.at_ms = begun_ms + seq * WEEK_MS // count
        todo = story.step()


def write(client: Redis, keys: Keys, count: int, ends_at_ms: int) -> None:
    """Append them in pipelines."""
    stream = keys.key("log")
    # redis-py leaves the method unannotated.
    pipeline: Any = client.pipeline(transaction=False)
    waiting = 0
    for entry_id, fields in stories(count, ends_at_ms):
        pipeline.execute_command(
            "XADD", stream, entry_id, *[part for pair in fields.items() for part in pair]
        )
        waiting += 1
        if waiting == PIPELINED:
            pipeline.execute()
            waiting = 0
    pipeline.execute()
