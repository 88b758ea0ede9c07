"""Messages of a chat in the native form: one for each part, as Ollama has it."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from aibs.codec import loads
from aibs.gateway.bodies import BadBody
from aibs.gateway.translation.fields import folded, items, record, text

_IMAGES: Final = ("data:;base64,", *(f"data:image/{t};base64," for t in ("jpeg", "jpg", "png")))
_PREFIXES: Final = (*_IMAGES, "data:image/webp;base64,")


def native_messages(given: Any) -> list[dict[str, Any]]:
    """The native messages. Raises BadBody."""
    if given is not None and not isinstance(given, list):
        raise BadBody("messages must be a list")
    if not given:
        raise BadBody("[] is too short - 'messages'")
    messages = [folded(one, f"messages[{place}]") for place, one in enumerate(given)]
    found: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        found += _native(message, messages, f"messages[{place}].")
    if not found:
        # Without a message the node would load the model and say nothing.
        raise BadBody("messages have no content")
    return found


def _native(message: dict[str, Any], others: list[dict[str, Any]], at: str) -> list[dict[str, Any]]:
    role, content = text(message, "role", at) or "", message.get("content")
    calls = tool_calls(items(message, "tool_calls", at), at)
    more: dict[str, Any] = {}
    thinking = text(message, "reasoning", at)
    if thinking:
        more["thinking"] = thinking
    if calls:
        more["tool_calls"] = calls
    call_id = text(message, "tool_call_id", at)
    if role.lower() == "tool":
        name = text(message, "name", at) or _called(others, call_id)
        if name:
            more["tool_name"] = name
    if call_id:
        more["tool_call_id"] = call_id
    if isinstance(content, str):
        return [{"role": role, "content": content, **more}]
    if isinstance(content, list):
        found = [
            {"role": role, **_part(part, f"{at}content[{place}]")}
            for place, part in enumerate(content)
        ]
        if found:
            found[-1].update(more)
        elif calls:
            found = [{"role": role, "content": "", **more}]
        return found
    if content is not None:
        raise BadBody(f"{at}content must be a string or a list of parts")
    if message.get("tool_calls") is None:
        raise BadBody(f"{at}content is missing")
    return [{"role": role, "content": "", **more}]


def _part(part: Any, at: str) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise BadBody(f"{at} must be an object")
    kind = part.get("type")
    if kind == "text":
        said = part.get("text")
        if not isinstance(said, str):
            raise BadBody(f"{at}.text must be a string")
        return {"content": said}
    if kind == "image_url":
        url = part.get("image_url")
        return {
            "content": "",
            "images": [image(url.get("url") if isinstance(url, dict) else url, at)],
        }
    raise BadBody(f"{at} is of type {str(kind)[:40]!r}: it can be text or image_url")


def image(url: Any, at: str) -> str:
    """The base64 text of a data URL. Raises BadBody."""
    if not isinstance(url, str):
        raise BadBody(f"{at} has no URL of an image")
    if url.startswith(("http://", "https://")):
        raise BadBody(f"{at}: image URLs are not fetched, send the image itself as a data URL")
    prefix = next((one for one in _PREFIXES if url.startswith(one)), None)
    if prefix is None:
        raise BadBody(f"{at} is no data URL of a jpeg, png or webp image")
    # Go's decoder passes over the ends of lines.
    data = url[len(prefix) :].replace("\n", "").replace("\r", "")
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadBody(f"{at} is no base64") from error
    return data


def tool_calls(given: list[Any] | None, at: str) -> list[dict[str, Any]]:
    """Calls that an assistant made before, with their ids. Raises BadBody."""
    found = []
    for place, one in enumerate(given or ()):
        here = f"{at}tool_calls[{place}]."
        call = folded(one, here[:-1])
        function = record(call, "function", here) or {}
        here += "function."
        found.append(
            native_call(
                text(call, "id", here),
                text(function, "name", here),
                text(function, "arguments", here),
                f"{here}arguments",
            )
        )
    return found


def native_call(
    call_id: str | None, name: str | None, arguments: str | None, at: str
) -> dict[str, Any]:
    """One call; the arguments are JSON in a string. Raises BadBody."""
    try:
        values = loads(arguments or "")
    except ValueError as error:
        raise BadBody(f"{at} are not JSON") from error
    if values is not None and not isinstance(values, dict):
        raise BadBody(f"{at} are not an object")
    call = {"id": call_id} if call_id else {}
    return {**call, "function": {"name": name or "", "arguments": values or {}}}


def _called(messages: list[dict[str, Any]], call_id: str | None) -> str | None:
    """The name of the function that a call's id stands for: the last one's of that id."""
    if not call_id:
        return None
    for message in reversed(messages):
        for call in message.get("tool_calls") or ():
            if isinstance(call, dict) and call.get("id") == call_id:
                function = call.get("function")
                name = function.get("name") if isinstance(function, dict) else None
                return name if isinstance(name, str) else None
    return None
