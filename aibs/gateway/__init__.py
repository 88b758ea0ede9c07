"""The gateway: Ollama's and OpenAI's own API in front of the fleet, every request under a lease.

      client ─▶ access ─▶ routes ─▶ placing ─▶ lease ─▶ forwarding ─▶ node
                (key)    (whose     (wait,    (load if   (bytes both ways,
                          format)    retry)    cold)      limits, end seen)

It decides what of a client's request reaches a node (headers by an allow-list; num_ctx and
keep_alive by the worker's policy), how long it waits for each thing, and whether a failure was the
node's, so that the request may go to another node and the node may be closed for all.

A request on one of OpenAI's routes for a worker with a `num_ctx`, which those routes cannot carry,
goes to the node's native route, and its answer is told in OpenAI's form (`translation/`).

It never decides where a request runs: that is placement's. It passes no byte that a node sent
on to a client before a lease covers it, and it ends a lease only when the node's connection is
closed. What it cannot place it refuses in the client's own format.

Failure: without the coordination server every request is refused at once and none is forwarded. A
gateway that dies leaves leases, which its successor on the host ends, or their deadline.
"""
