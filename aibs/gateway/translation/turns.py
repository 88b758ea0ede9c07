"""The request of /v1/responses as one of /api/chat: a conversation that it holds whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from aibs.gateway.bodies import BadBody
from aibs.gateway.translation.fields import flag, folded, integer, items, number, record, text
from aibs.gateway.translation.messages import image, native_call
from aibs.gateway.translation.options import DEFAULT, think_of

INCLUDED: Final = "reasoning.encrypted_content"
"""What can be asked for beside the answer: it is there anyway."""

_STORED: Final = ("conversation", "previous_response_id", "prompt")
_TEXTS: Final = ("input_text", "output_text", "text")


def responses_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The native request, but for its model. Raises BadBody."""
    _refuse(fields)
    found: dict[str, Any] = {
        "messages": _messages(fields),
        "stream": flag(fields, "stream"),
        "options": _options(fields),
    }
    tools = _tools(fields)
    if tools:
        found["tools"] = tools
    form = _format(fields)
    if form is not None:
        found["format"] = form
    reasoning = record(fields, "reasoning") or {}
    think = think_of(text(reasoning, "effort", "reasoning."))
    if think is not None:
        found["think"] = think
    return found


def _refuse(fields: dict[str, Any]) -> None:
    """What no node can do. Raises BadBody."""
    for name in _STORED:
        if fields.get(name):
            raise BadBody(f"{name} is not served: nothing is stored here, send the whole input")
    if flag(fields, "background"):
        raise BadBody("background is not served: nothing is stored here")
    if integer(fields, "top_logprobs"):
        raise BadBody("top_logprobs is not served on this route")
    for one in items(fields, "include") or ():
        if one != INCLUDED:
            raise BadBody(f"include has {str(one)[:80]!r}: only {INCLUDED} can be asked for")
    choice = fields.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise BadBody("tool_choice can be auto or none: a node cannot be made to call a tool")


def _options(fields: dict[str, Any]) -> dict[str, Any]:
    temperature, top_p = number(fields, "temperature"), number(fields, "top_p")
    found: dict[str, Any] = {"temperature": DEFAULT if temperature is None else temperature}
    if top_p is not None:
        # Left to the model where it is not said, other than in a chat.
        found["top_p"] = top_p
    limit = integer(fields, "max_output_tokens")
    if limit is not None:
        found["num_predict"] = limit
    return found


def _tools(fields: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for place, one in enumerate(items(fields, "tools") or ()):
        at = f"tools[{place}]."
        tool = folded(one, at[:-1])
        if tool.get("type") != "function":
            raise BadBody(f"{at}type is {str(tool.get('type'))[:40]!r}: only functions are served")
        function: dict[str, Any] = {"name": text(tool, "name", at) or ""}
        description = text(tool, "description", at)
        if description:
            function["description"] = description
        parameters = tool.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise BadBody(f"{at}parameters must be an object")
        function["parameters"] = parameters or {"type": "object", "properties": {}}
        found.append({"type": "function", "function": function})
    return [] if fields.get("tool_choice") == "none" else found


def _format(fields: dict[str, Any]) -> Any:
    wanted = record(record(fields, "text") or {}, "format", "text.")
    if wanted is None:
        return None
    match text(wanted, "type", "text.format."):
        case None | "" | "text":
            return None
        case "json_object":
            return "json"
        case "json_schema":
            return wanted.get("schema")
    raise BadBody("text.format.type can be text, json_object or json_schema")


def _messages(fields: dict[str, Any]) -> list[dict[str, Any]]:
    turns = _Turns([])
    instructions = text(fields, "instructions")
    if instructions:
        turns.add("system", instructions)
    given = fields.get("input")
    if isinstance(given, str):
        if given:
            turns.add("user", given)
    elif isinstance(given, list):
        for place, one in enumerate(given):
            _take(turns, folded(one, f"input[{place}]"), f"input[{place}].")
    elif given is not None:
        raise BadBody("input must be a string or a list of items")
    turns.end()
    if not any(message["role"] != "system" for message in turns.messages):
        # Without a message the node would load the model and say nothing.
        raise BadBody("input is empty")
    return turns.messages


@dataclass(slots=True)
class _Turns:
    """The messages so far. `thinking` is for the assistant's next one."""

    messages: list[dict[str, Any]]
    thinking: str = ""

    def add(self, role: str, content: str, **more: Any) -> None:
        """One message more."""
        if role == "assistant" and self.thinking:
            more["thinking"], self.thinking = self.thinking, ""
        self.messages.append({"role": role, "content": content, **more})

    def call(self, call: dict[str, Any]) -> None:
        """A call, which belongs to what the assistant said just before."""
        if not self.messages or self.messages[-1]["role"] != "assistant" or self.thinking:
            self.add("assistant", "")
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def end(self) -> None:
        """Nothing more comes."""
        if self.thinking:
            self.add("assistant", "")


def _take(turns: _Turns, item: dict[str, Any], at: str) -> None:
    kind = text(item, "type", at) or ("message" if item.get("role") else "")
    more: dict[str, Any]
    match kind:
        case "message":
            content, images = _content(item.get("content"), f"{at}content")
            more = {"images": images} if images else {}
            turns.add(text(item, "role", at) or "", content, **more)
        case "function_call":
            arguments = text(item, "arguments", at) or "{}"
            name, call_id = text(item, "name", at), text(item, "call_id", at)
            turns.call(native_call(call_id, name, arguments, f"{at}arguments"))
        case "function_call_output":
            content, images = _content(item.get("output"), f"{at}output")
            more = {"images": images} if images else {}
            call_id = text(item, "call_id", at)
            if call_id:
                more["tool_call_id"] = call_id
                name = _called(turns.messages, call_id)
                if name:
                    more["tool_name"] = name
            turns.add("tool", content, **more)
        case "reasoning":
            turns.thinking += _thought(item, at)
        case _:
            raise BadBody(f"{at}type is {kind[:40]!r}, which is not served")


def _content(given: Any, at: str) -> tuple[str, list[str]]:
    """Text and images of an item."""
    if given is None or isinstance(given, str):
        return given or "", []
    if not isinstance(given, list):
        raise BadBody(f"{at} must be a string or a list of parts")
    said, images = "", []
    for place, one in enumerate(given):
        here = f"{at}[{place}]"
        part = folded(one, here)
        kind = part.get("type")
        if kind in _TEXTS:
            said += text(part, "text", f"{here}.") or ""
        elif kind == "input_image":
            images.append(image(part.get("image_url"), here))
        else:
            raise BadBody(f"{here}.type is {str(kind)[:40]!r}: it can be a text or input_image")
    return said, images


def _thought(item: dict[str, Any], at: str) -> str:
    """What the assistant thought: the gateway's own items hold it as it is, others' a summary."""
    kept = text(item, "encrypted_content", at)
    if kept:
        return kept
    parts = items(item, "content", at) or items(item, "summary", at) or ()
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _called(messages: list[dict[str, Any]], call_id: str) -> str | None:
    for message in reversed(messages):
        for call in message.get("tool_calls", ()):
            if call.get("id") == call_id:
                return str(call["function"]["name"]) or None
    return None
