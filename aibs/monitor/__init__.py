"""The elected monitor: one process polls the nodes and writes what it saw, the others stand by.

    ┌──────────┐  elect: ok   ┌─────────┐
    │ follower │ ───────────▶ │  owner  │── renewals, on a connection of their own, every TTL / 3
    │ (standby)│ ◀─────────── │         │── one poller a node, one recorder for all
    └──────────┘  fenced, or  └─────────┘
                  trust over, or resigned

The server decides who owns: a term is (owner, fence, deadline by the server's TIME), and every
write must show the living owner and fence. Local time decides only how long this process goes on
trusting its term: from before the request was sent, plus the TTL, less a margin, on a clock that
counts suspended time. So a slow answer, a pause or a lost connection ends our trust before the
server gives the term away.

This package never decides what is eligible for placement, never infers that a node is empty, and
never writes but through a script.

Failure: a node that hangs, lies or is gone costs its own stamp only. A coordination server that is
gone is tried again with backoff; the term is given up by our own clock. A write under an old fence
is refused by the server and ends the term here.
"""
