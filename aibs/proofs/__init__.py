"""Proofs that an operator runs before enabling the scheduler.

The takeover proof starts real monitors on an isolated namespace, kills (or pauses) the owner, and
judges from the log alone, in the server's time, whether anything stale was trusted.

    namespace ─▶ owner A ─▶ samples ─▶ standby B ─▶ A killed ─▶ samples of B ─▶ verdict ─▶ deleted

It decides nothing by its own clock, writes nothing outside its own namespace but the list of proof
namespaces, and reads nodes only as a monitor does. A proof that was itself killed leaves a
namespace; the next one on that server deletes it.
"""
