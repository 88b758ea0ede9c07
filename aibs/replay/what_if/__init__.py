"""What if the fleet had been another: the recorded requests run again through the placement model.

    log ─▶ recorded requests, residency of others ─┬─▶ model with the recorded fleet ─▶ before
                                                   └─▶ model with the changed fleet  ─▶ after

Both runs are simulations by the same rules, so that their difference is the change's; what was
recorded stands beside them, and tells how far the simulation may be believed. Pure.

What it does not know: requests that would have come, or been given up, had the answers been others;
how long a model takes to load where it never was loaded; keep-alives, by which Ollama unloads idle
models by itself; trips, and which nodes a request would not have.
"""
