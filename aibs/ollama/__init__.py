"""A node's side: what its answers mean, whose models it holds, and a client for its API.

Decides how an answer is read, and whose a resident model is. Never decides what follows from it.
Fails: an answer that cannot be trusted is an error with a short reason code, never an empty list.
"""
