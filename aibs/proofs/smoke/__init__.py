"""The controlled enable test: a few real requests through the gateway, judged from the log.

    audit ─▶ narrow ─▶ broad ─▶ two broads at once ─▶ one cut by its client ─▶ nothing leaks

It is what an operator runs after enabling the scheduler. What the gateway says of its requests is
only how they are found in the log; whether they were placed, where, and how their leases ended is
read from the events of the pool. Other requests of the fleet are left out of account.

It writes nothing but its requests, and decides nothing by its own clock but how long to wait.

Failure: without an answer from the gateway or the coordination server there is no verdict. A
request that is refused, unanswered, or unknown to the log fails its step; the others go on.
"""
