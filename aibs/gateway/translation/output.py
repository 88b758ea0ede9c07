"""What a response consists of, item by item, each with the events that tell it. Items follow one
another: one is closed before the next begins.
"""

from __future__ import annotations

from typing import Any

from aibs.gateway.translation.stream import LINE_MAX, Unreadable

Told = list[tuple[str, dict[str, Any]]]
"""Events: their kind, and their members but for kind and number."""


class Output:
    """The items so far. `token` makes their ids."""

    def __init__(self, token: str) -> None:
        self.items: list[dict[str, Any]] = []
        self._token = token
        self._open: _Text | None = None
        self._size = 0

    def think(self, text: str) -> Told:
        """Reasoning, which is told as its own summary."""
        return self._said(_Reasoning, text)

    def say(self, text: str) -> Told:
        """A part of a message."""
        return self._said(_Message, text)

    def call(self, call: dict[str, Any]) -> Told:
        """A call, whole; in the form of a chat's."""
        told = self.close()
        index, function = len(self.items), call["function"]
        at = {"item_id": f"fc_{self._token}_{index}", "output_index": index}
        item = {
            "id": at["item_id"],
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            "name": function["name"],
            "arguments": function["arguments"],
        }
        self._keep(len(function["arguments"]))
        self.items.append(item)
        opened = {**item, "status": "in_progress", "arguments": ""}
        arguments = {"name": function["name"], "arguments": function["arguments"]}
        return [
            *told,
            ("response.output_item.added", {"output_index": index, "item": opened}),
            ("response.function_call_arguments.delta", {**at, "delta": function["arguments"]}),
            ("response.function_call_arguments.done", {**at, **arguments}),
            ("response.output_item.done", {"output_index": index, "item": item}),
        ]

    def close(self) -> Told:
        """Nothing is added to the open item any more."""
        item, self._open = self._open, None
        if item is None:
            return []
        self.items.append(item.item("completed"))
        return item.closed()

    def _said(self, kind: type[_Text], text: str) -> Told:
        told: Told = []
        if not isinstance(self._open, kind):
            told = self.close()
            self._open = kind(self._token, len(self.items))
            told += self._open.opened()
        self._keep(len(text))
        return [*told, *self._open.said(text)]

    def _keep(self, size: int) -> None:
        # The end repeats all of it.
        self._size += size
        if self._size > LINE_MAX:
            raise Unreadable(f"the answer has more than {LINE_MAX} characters")


class _Text:
    """An item that grows."""

    PREFIX = ""

    def __init__(self, token: str, index: int) -> None:
        self._id = f"{self.PREFIX}_{token}_{index}"
        self._index = index
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """All that was said."""
        return "".join(self._parts)

    def item(self, status: str) -> dict[str, Any]:
        """The item as it is."""
        raise NotImplementedError

    def opened(self) -> Told:
        """The events of its beginning."""
        item = {"output_index": self._index, "item": self.item("in_progress")}
        return [("response.output_item.added", item)]

    def said(self, text: str) -> Told:
        """The events of a piece."""
        self._parts.append(text)
        return []

    def closed(self) -> Told:
        """The events of its end."""
        item = {"output_index": self._index, "item": self.item("completed")}
        return [("response.output_item.done", item)]


class _Reasoning(_Text):
    PREFIX = "rs"

    def item(self, status: str) -> dict[str, Any]:
        base = {"id": self._id, "type": "reasoning"}
        if status == "in_progress":
            return {**base, "summary": []}
        # Not encrypted: what comes back with the next request is taken as it is.
        summary = [{"type": "summary_text", "text": self.text}]
        return {**base, "summary": summary, "encrypted_content": self.text}

    def said(self, text: str) -> Told:
        super().said(text)
        return [("response.reasoning_summary_text.delta", {**self._at, "delta": text})]

    def closed(self) -> Told:
        done = ("response.reasoning_summary_text.done", {**self._at, "text": self.text})
        return [done, *super().closed()]

    @property
    def _at(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index, "summary_index": 0}


class _Message(_Text):
    PREFIX = "msg"

    def item(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part(self.text)]
        base = {"id": self._id, "type": "message", "status": status}
        return {**base, "role": "assistant", "content": content}

    def opened(self) -> Told:
        return [
            *super().opened(),
            ("response.content_part.added", {**self._at, "part": self._part("")}),
        ]

    def said(self, text: str) -> Told:
        super().said(text)
        return [("response.output_text.delta", {**self._at, "delta": text, "logprobs": []})]

    def closed(self) -> Told:
        text = self.text
        return [
            ("response.output_text.done", {**self._at, "text": text, "logprobs": []}),
            ("response.content_part.done", {**self._at, "part": self._part(text)}),
            *super().closed(),
        ]

    @property
    def _at(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}

    @staticmethod
    def _part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
