"""Objects of Ollama's own API that the gateway makes itself."""

from __future__ import annotations

import time
from typing import Any

from aibs.codec import rfc3339


def empty_piece(path: str, model: str, **members: Any) -> dict[str, Any]:
    """An answer of that route with nothing in it; `members` are added."""
    empty: dict[str, Any] = (
        {"message": {"role": "assistant", "content": ""}}
        if path == "/api/chat"
        else {"response": ""}
    )
    return {"model": model, "created_at": rfc3339(int(time.time() * 1000)), **empty, **members}
