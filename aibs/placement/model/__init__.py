"""Placement in plain Python: what the scripts decide, by scanning every node and every waiter.

It is the memory back end's mind, and the oracle that the scripts are compared with. It has no
index, no I/O and no clock: every method takes the time. One call is one decision, whole or not at
all; errors of its caller raise ValueError.
"""
