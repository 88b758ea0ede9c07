"""A simulated Ollama server, true enough that a client which would break on a real one breaks here.

Decides what a server of a given version would answer and hold: names, residency in time, eviction,
unloads, keep-alives, streams and their errors; and, on demand, every fault that a node can show.
Never decides what a client should make of it, and never runs a model: loads and replies are waits.
Fails: a spec that cannot be is a ValueError at construction; a handler that fails answers 500 with
an empty body, as the real server does.

    spec.py  profile.py            what a node is, and what its version does
    body.py                        how a request is read, with keep_alive.py beside this package
    access.py  catalog.py          whom it answers, and which installed model a name means
    runner.py  scheduler.py        what is resident, and what happens to it in time
    generation.py  ps_view.py      replies piece by piece; what /api/ps shows
    native.py  openai.py  control.py  routes.py  faults.py    the routes, and what spoils them
    connection.py  server.py       HTTP/1.1 over sockets
    options.py  process.py         `aibs node sim`
"""

from __future__ import annotations

from aibs.ollama.sim.faults import Faults
from aibs.ollama.sim.server import SimServer
from aibs.ollama.sim.spec import SimModel, SimSpec

__all__ = ["Faults", "SimModel", "SimServer", "SimSpec"]
