"""`aibs demo`: the whole system on one machine, in a temporary directory, with real parts.

Real are the Valkey, the monitors, the gateway, the sockets, the log and the audit; simulated are
the two Ollama nodes. Nothing outlives it: every process, socket and file is undone on every way
out, and children of a demo that was itself killed end by themselves.
"""
