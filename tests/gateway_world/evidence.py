"""What the pool says happened: its log, and the leases that live now."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

from redis import Redis

from aibs.codec import loads
from aibs.eventstore.events.envelope import Event, parse_entry
from aibs.eventstore.keys import Keys
from tests.gateway_world.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterable

ENDS: Final = ("LeaseReleased", "LeaseExpired", "LeaseReaped")


class Evidence:
    """Reads one pool. To be closed."""

    def __init__(self, url: str, namespace: str) -> None:
        self._client = Redis.from_url(url, socket_timeout=10)
        self._keys = Keys(namespace)
        self._events: list[Event] = []
        self._last = "-"

    def close(self) -> None:
        """Give its connection up."""
        self._client.close()

    def forget(self) -> None:
        """Delete the whole pool."""
        for key in self._client.scan_iter(match=self._keys.pattern, count=1000):
            self._client.unlink(key)

    def events(self, *types: str, after: int = 0) -> list[Event]:
        """The log so far; of these types, behind that seq."""
        for entry_id, fields in self._range():
            self._events.append(parse_entry(entry_id, fields))
            self._last = f"({entry_id.decode()}"
        return [
            event
            for event in self._events
            if event.seq > after and (not types or event.type in types)
        ]

    def _range(self) -> list[tuple[bytes, dict[bytes, bytes]]]:
        found: Any = self._client.xrange(self._keys.key("log"), self._last, "+")
        return [entry if isinstance(entry, tuple) else tuple(entry) for entry in found]

    def mark(self) -> int:
        """The seq of the newest event: what a test looks behind."""
        events = self.events()
        return events[-1].seq if events else 0

    def active(self) -> int:
        """How many leases live."""
        count: Any = self._client.hlen(self._keys.key("leases"))
        return int(count)

    def waiting(self) -> int:
        """How many requests stand in the queue."""
        count: Any = self._client.hlen(self._keys.key("waiters"))
        return int(count)

    def now_ms(self) -> int:
        """The server's clock."""
        seconds, micros = self._client.time()
        return seconds * 1000 + micros // 1000

    def wait_observed(self, node_id: str, since_ms: int) -> None:
        """Until what a node held after that moment is known."""

        def observed() -> bool:
            text = cast("bytes | None", self._client.hget(self._keys.key("stamps"), node_id))
            return text is not None and loads(text)["observed_at_ms"] > since_ms

        until(observed, f"an observation of {node_id}")

    def grants(self, after: int = 0) -> list[dict[str, Any]]:
        """The leases that were granted, oldest first."""
        return [event.data["lease"] for event in self.events("LeaseAcquired", after=after)]

    def ends_of(self, lease_id: str) -> list[Event]:
        """How a lease ended."""
        return [event for event in self.events(*ENDS) if event.data["lease_id"] == lease_id]

    def outcomes(self, after: int = 0) -> Counter[str]:
        """How the leases that were granted behind that seq ended: by outcome, or the event's type;
        `active` those that did not.
        """
        found: Counter[str] = Counter()
        ended = {
            event.data["lease_id"]: event.data.get("outcome", event.type)
            for event in self.events(*ENDS, after=after)
        }
        for lease in self.grants(after):
            found[ended.get(lease["lease_id"], "active")] += 1
        return found

    def assert_one_end_a_grant(self, after: int = 0, *, late: int = 0) -> None:
        """Each grant behind that seq ended once; nothing was given back twice, and no more than
        `late` of them late.
        """
        granted = Counter(lease["lease_id"] for lease in self.grants(after))
        ended = Counter(event.data["lease_id"] for event in self.events(*ENDS, after=after))
        assert granted == ended, (granted - ended, ended - granted)
        strange = self.events("LateRelease", "DoubleRelease", after=after)
        assert [event.type for event in strange] == ["LateRelease"] * late

    def most_at_once(self, after: int = 0) -> Counter[str]:
        """For each node the most leases that lived there at one time, by the log's own order."""
        living: Counter[str] = Counter()
        most: Counter[str] = Counter()
        place: dict[str, str] = {}
        for event in self.events("LeaseAcquired", *ENDS, after=after):
            if event.type == "LeaseAcquired":
                lease = event.data["lease"]
                place[lease["lease_id"]] = lease["node_id"]
                living[lease["node_id"]] += 1
                most[lease["node_id"]] = max(most[lease["node_id"]], living[lease["node_id"]])
            elif event.data["lease_id"] in place:
                living[place[event.data["lease_id"]]] -= 1
        return most


def types_of(events: Iterable[Event]) -> list[str]:
    """What happened, for a message."""
    return [event.type for event in events]
