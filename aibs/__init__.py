"""aibs: the global model scheduler for a shared fleet of Ollama boxes.

A request reaches a box only when one atomic decision found fresh residency evidence, free memory
and a free slot there, and took a lease on them. Where the scheduler does not know, it refuses.
Every decision and observation is an event in a Valkey stream; capacity, health history, leaks and
forensics are folds of that log.
"""

__version__ = "0.1.0"
