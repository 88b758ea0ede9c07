"""Readiness: may the global scheduler be enabled, and what is missing?

Decides: which gates pass, what each worker weighs and where it fits, and what an operator should
change. Everything that it says of a node it asked that node for, everything that it says of the
pool it read there.

Never decides placement, never writes to the pool, never starts a server, and moves no model unless
it was told to warm models up.

Fails: a node or a server that does not answer costs its own part of the document only. What is not
known fails the gate that needs it; no gate passes for want of evidence.
"""
