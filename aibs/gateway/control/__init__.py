"""What an operator and a program ask the gateway itself: placements, health, status, metrics.

        ┌ each second ┐                         ┌─▶ /readyz, /metrics (no server is read)
    pool ─▶ look ─▶ view ───────────────────────┤
    log ──▶ follower ─▶ projections, counters ──┴─▶ /status (read once a second at most)
    key ──▶ /placements ─▶ the placer's back end, with the API key as the lease's holder

It decides whether this process could place a request now, and who may touch a lease that was
granted to an application. It never decides about placement, renews no application's lease, and no
answer of it waits for a data request.

Failure: while the pool is away, health stays good, readiness says why it is not, and everything
that needs the pool is refused at once with a sentence. Nothing is shown as of now that is not.
"""

from aibs.gateway.control.plane import ControlPlane, control_routes

__all__ = ["ControlPlane", "control_routes"]
