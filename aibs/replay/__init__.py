"""Reading the past: the log on the server or in a file, a state at an instant, a request's story.

Decides what the log tells, and says where it tells nothing. It reads the log alone, never the live
state but to compare with it: the same events give the same answer on the server and from a file.
Writes nothing to the coordination server and never starts one.

Failure: an entry that is not an event is shown and named, and the reading goes on; a file that is
cut or damaged is read up to its fault, which is told.
"""
