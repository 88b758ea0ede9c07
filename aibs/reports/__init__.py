"""What operators read of a running pool: leases that leak, and one screen of now.

Decides nothing and writes nothing: it reads the live state at one event of the log, folds the log
up to that event, and compares the two. A server that cannot be reached, and a pool that was never
made, are errors with a mend.
"""
