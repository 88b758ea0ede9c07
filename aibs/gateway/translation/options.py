"""What a request says of sampling, limits, form and effort, as native options."""

from __future__ import annotations

from typing import Any, Final

from aibs.gateway.bodies import BadBody
from aibs.gateway.translation.fields import integer, number, record, text

EFFORTS: Final = ("low", "medium", "high", "max")
DEFAULT: Final = 1.0
"""OpenAI's temperature and top_p, which Ollama sets where a request says none."""


def chat_options(fields: dict[str, Any]) -> dict[str, Any]:
    """Of a chat: penalties only where they are said. Raises BadBody."""
    found = _sampling(fields)
    for name in ("frequency_penalty", "presence_penalty"):
        value = number(fields, name)
        if value is not None:
            found[name] = value
    top_p = number(fields, "top_p")
    found["top_p"] = DEFAULT if top_p is None else top_p
    return found


def completion_options(fields: dict[str, Any]) -> dict[str, Any]:
    """Of a completion, which has no penalty of its own, and takes 0 as no top_p. Raises BadBody."""
    found = _sampling(fields)
    for name in ("frequency_penalty", "presence_penalty"):
        found[name] = number(fields, name) or 0
    found["top_p"] = number(fields, "top_p") or DEFAULT
    return found


def _sampling(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    stop = _stop(fields.get("stop"))
    if stop is not None:
        found["stop"] = stop
    limit, older = integer(fields, "max_completion_tokens"), integer(fields, "max_tokens")
    limit = older if limit is None else limit
    if limit is not None:
        found["num_predict"] = limit
    temperature = number(fields, "temperature")
    found["temperature"] = DEFAULT if temperature is None else temperature
    seed = integer(fields, "seed")
    if seed is not None:
        found["seed"] = seed
    return found


def _stop(value: Any) -> list[str] | None:
    if value is None:
        return None
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise BadBody("stop must be a string or a list of strings")
    return stops


def effort_of(fields: dict[str, Any]) -> str | None:
    """`reasoning.effort`, or `reasoning_effort` where there is no `reasoning`. Raises BadBody."""
    reasoning = record(fields, "reasoning")
    if reasoning is not None:
        return text(reasoning, "effort", "reasoning.")
    return text(fields, "reasoning_effort")


def think_of(effort: str | None) -> str | bool | None:
    """The native `think`; None leaves it to the model. Raises BadBody."""
    if not effort:
        return None
    if effort == "none":
        return False
    if effort not in EFFORTS:
        raise BadBody(
            f"the reasoning effort is {effort[:40]!r}: it can be low, medium, high, max or none"
        )
    return effort


def format_of(wanted: dict[str, Any] | None) -> Any:
    """The native `format` of a `response_format`: members of a schema keep their order. Raises
    BadBody.
    """
    if wanted is None:
        return None
    kind = (text(wanted, "type", "response_format.") or "").strip().lower()
    if kind == "json_object":
        return "json"
    if kind == "json_schema":
        schema = record(wanted, "json_schema", "response_format.")
        return None if schema is None else schema.get("schema")
    return None
