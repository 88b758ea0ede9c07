"""What the election and observation scripts must decide, in plain Python: the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field

STEP_MS = 2000
AGREEMENT_MS = 1000
GOOD_POLLS_TO_RETURN = 2


@dataclass
class StampModel:
    """A node's record. `observed_at_ms` 0: never seen."""

    fence: int
    seq: int
    healthy: bool | None = None
    observed_at_ms: int = 0
    failed_in_row: int = 0
    good_in_row: int = 0


@dataclass
class PoolModel:
    """One pool. Every method takes the server's time and answers as the script would."""

    owner: str = ""
    fence: int = 0
    deadline_ms: int = 0
    ttl_ms: int = 0
    attempt: str = ""
    ended: str = ""
    last_owner: str = ""
    renewed_at_ms: int = 0
    renewed_mono_ms: int = 0
    revision: int | None = None
    fingerprint: str = ""
    urls: dict[str, str] = field(default_factory=dict)
    stamps: dict[str, StampModel] = field(default_factory=dict)
    threshold: int = 2
    staleness_ms: int = 20_000

    def look(self, now: int) -> None:
        """After a step back a deadline would lie far ahead: seen, it never exceeds its TTL."""
        self.deadline_ms = min(self.deadline_ms, now + self.ttl_ms)

    def _expire(self, now: int) -> None:
        self.look(now)
        if self.owner and self.deadline_ms <= now:
            self.owner, self.last_owner, self.ended = "", self.owner, "expired"

    def _holds(self, owner: str, fence: int, now: int) -> bool:
        self._expire(now)
        return self.owner == owner and self.fence == fence

    def elect(self, attempt: str, owner: str, ttl_ms: int, mono: int, now: int) -> tuple[str, int]:
        self._expire(now)
        if self.attempt == attempt:
            return ("ok", self.fence) if self.owner == owner else ("ended", self.fence)
        if self.owner:
            return "held", self.fence
        self.owner, self.fence, self.attempt = owner, self.fence + 1, attempt
        self.deadline_ms, self.ttl_ms, self.ended = now + ttl_ms, ttl_ms, ""
        self.renewed_at_ms, self.renewed_mono_ms = now, mono
        return "ok", self.fence

    def renew(
        self, owner: str, fence: int, ttl_ms: int, mono: int, confirmed: int, now: int
    ) -> str:
        self.look(now)
        if self.owner == owner and self.fence == fence:
            step = (now - self.renewed_at_ms) - (mono - self.renewed_mono_ms)
            if abs(step) > STEP_MS:
                if abs(step - confirmed) > AGREEMENT_MS:
                    return "clock"
                if step > 0:
                    self.deadline_ms += step
        if not self._holds(owner, fence, now):
            return "fenced"
        self.deadline_ms, self.ttl_ms = now + ttl_ms, ttl_ms
        self.renewed_at_ms, self.renewed_mono_ms = now, mono
        return "ok"

    def resign(self, owner: str, fence: int, now: int) -> str:
        self.look(now)
        repeated = (self.owner, self.fence, self.last_owner, self.ended)
        if repeated == ("", fence, owner, "resigned"):
            return "ok"
        if not self._holds(owner, fence, now):
            return "fenced"
        self.owner, self.last_owner, self.ended = "", owner, "resigned"
        return "ok"

    def declare(
        self,
        owner: str,
        fence: int,
        revision: int,
        fingerprint: str,
        urls: dict[str, str],
        now: int,
    ) -> str:
        if not self._holds(owner, fence, now):
            return "fenced"
        if self.revision is not None and revision <= self.revision:
            return "unchanged" if fingerprint == self.fingerprint else "mismatch"
        for node_id, url in self.urls.items():
            if urls.get(node_id) != url:
                self.stamps.pop(node_id, None)
        self.revision, self.fingerprint, self.urls = revision, fingerprint, dict(urls)
        return "ok"

    def observe(
        self,
        owner: str,
        fence: int,
        fingerprint: str,
        node_id: str,
        url: str,
        begun_fence: int,
        seq: int,
        elapsed_ms: int,
        good: bool,
        now: int,
    ) -> str:
        if not self._holds(owner, fence, now):
            return "fenced"
        if self.fingerprint != fingerprint:
            return "fleet_mismatch"
        if begun_fence != fence:
            return "other_fence"
        if node_id not in self.urls:
            return "undeclared"
        if self.urls[node_id] != url:
            return "other_url"
        stamp = self.stamps.get(node_id)
        if stamp and stamp.fence == fence and stamp.seq >= seq:
            return "duplicate" if stamp.seq == seq else "older"
        if elapsed_ms > self.staleness_ms:
            return "too_late"
        stamp = self.stamps.setdefault(node_id, StampModel(fence, seq))
        stamp.fence, stamp.seq = fence, seq
        if good:
            stamp.observed_at_ms = now - elapsed_ms
            stamp.failed_in_row, stamp.good_in_row = 0, stamp.good_in_row + 1
            if stamp.healthy is None or stamp.good_in_row >= GOOD_POLLS_TO_RETURN:
                stamp.healthy = True
        else:
            stamp.good_in_row, stamp.failed_in_row = 0, stamp.failed_in_row + 1
            if stamp.failed_in_row >= self.threshold:
                stamp.healthy = False
        return "ok"
