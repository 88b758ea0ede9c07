"""Other `aibs` commands as children of this process: real processes, heard and ended.

A child runs in a session and a group of its own, so that a Ctrl-C in the terminal is for its
parent, which ends it in its order. It is tied to its parent by its standard input: when that
closes, however the parent ended, the child ends itself as on SIGTERM. It works wherever there are
pipes, and leaves the child the time to give back what it holds.

This package decides nothing about when a child runs, or whether it runs again.

Failure: a child that does not end in its time is killed with its whole group. Of one that ended by
itself the last lines are kept, and what is left of its group is killed.
"""
