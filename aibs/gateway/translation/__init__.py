"""OpenAI's API spoken to a node by its native routes, for workers that have a context of their own.

Ollama's /v1 routes carry no `num_ctx`: a request there asks for the node's default context, and
reloads a model that was loaded with another one (ollama.md §1.8, §3.5). The native routes carry it.

    request.py      which route of the node answers which of OpenAI's
    fields.py       members of a body, as Go reads them, and what is wrong with one
    options.py      temperature, limits, penalties, effort
    messages.py     messages, images, tool calls
    chat.py         /v1/chat/completions  ->  /api/chat
    completion.py   /v1/completions       ->  /api/generate
    embeddings.py   /v1/embeddings        ->  /api/embed
    turns.py        /v1/responses         ->  /api/chat, the request
    responses.py    the same, the answer
    output.py       what that consists of, item by item
    stream.py       lines in, events out

It decides what a request means on the native route, as Ollama's own middleware decides it, and how
the answer is told. It never decides whether a request is translated, nor what the worker's options
are; it does no I/O and knows no clock.

Failure: a request that cannot be carried is a `BadBody` whose sentence names the field. An answer
that cannot be read is `Unreadable`. A failure that the node tells in mid-stream becomes an event
with an error, and no `[DONE]` follows it.
"""

from aibs.gateway.translation.request import NativeRequest, native_request
from aibs.gateway.translation.stream import Answer, Envelope, NativeStream, Unreadable

__all__ = [
    "Answer",
    "Envelope",
    "NativeRequest",
    "NativeStream",
    "Unreadable",
    "native_request",
]
