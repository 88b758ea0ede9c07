"""A node's answer read in the form of another API, so that it is passed on like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aibs.codec import dumps_in_order
from aibs.gateway.endings import Ending, native_ending
from aibs.gateway.failures import NodeAnswer, NodeFailure, error_text
from aibs.gateway.replies import error_body
from aibs.gateway.translation import NativeStream, Unreadable
from aibs.gateway.translation.stream import native_object

if TYPE_CHECKING:
    from aibs.gateway.translation import Answer
    from aibs.gateway.upstream import Headers, NodeResponse

ERROR_MAX: Final = 1 << 16
WHOLE_MAX: Final = 1 << 26
"""Bytes of an answer in one piece, which must be there before it can be told in another form."""

PATH: Final = "/v1/"


class TranslatedResponse:
    """Stands for the NodeResponse that it reads."""

    def __init__(self, raw: NodeResponse, content_type: str) -> None:
        self.node_id = raw.node_id
        self.status = raw.status
        self.content_type = content_type
        self.model_missing = raw.model_missing
        self.first = b""
        self.end: ReadEnd | None = ReadEnd()
        self._read = self.end
        self._raw = raw
        self._stream: NativeStream | None = None

    def headers(self) -> Headers:
        """What the client gets: the body's are ours."""
        found = [(b"content-type", self.content_type.encode())]
        if self._stream is None:
            found.append((b"content-length", b"%d" % len(self.first)))
        return found

    async def next_chunk(self, silence_s: float) -> bytes:
        """What came since; empty at the end. Raises NodeFailure."""
        stream = self._stream
        while stream is not None:
            try:
                chunk = await self._raw.next_chunk(silence_s)
            except NodeFailure:
                if not stream.ending.complete:
                    raise
                # It broke behind its last word, with which the answer is whole.
                chunk = b""
            try:
                told = stream.feed(chunk) if chunk else stream.close()
            except Unreadable as error:
                raise NodeFailure(self.node_id, "truncated", str(error)) from error
            self._read.told = stream.ending
            if not chunk:
                self._stream = stream = None
            if told:
                return told
        return b""

    async def whole(self, limit: int, silence_s: float) -> bytes | None:  # noqa: ARG002
        """The rest of a refusal, which is there already."""
        return self.first

    async def read_stream(self, answer: Answer, silence_s: float) -> None:
        """Read until there is something to tell. Raises NodeFailure, also where the node did
        nothing but fail: no byte of that was told.
        """
        self._stream = stream = NativeStream(answer)
        try:
            self.first = stream.feed(self._raw.first)
        except Unreadable as error:
            raise NodeFailure(self.node_id, "http_5xx", str(error)) from error
        self._read.told = stream.ending
        if not self.first:
            self.first = await self.next_chunk(silence_s)
        if not stream.begun:
            if stream.ending.error is not None:
                raise self._failed(stream.ending.error)
            raise NodeFailure(self.node_id, "truncated", "an answer without anything in it")

    async def read_whole(self, answer: Answer, silence_s: float) -> None:
        """Read all of it. Raises NodeFailure."""
        body = await self._raw.whole(WHOLE_MAX, silence_s)
        if body is None:
            raise NodeFailure(
                self.node_id, "http_5xx", f"more than {WHOLE_MAX} bytes in one piece", counts=False
            )
        try:
            document = native_object(body)
            ending = native_ending(document)
            if ending.error is not None:
                raise self._failed(ending.error)
            self.first = dumps_in_order(answer.whole(document))
        except Unreadable as error:
            raise NodeFailure(self.node_id, "http_5xx", str(error)) from error
        # HTTP told its end: an answer in one piece says `done` for nothing else.
        self._read.told = Ending(True, None, ending.input_tokens, ending.output_tokens)

    async def read_refusal(self, silence_s: float) -> None:
        """Read what the node said instead of an answer."""
        try:
            body = await self._raw.whole(ERROR_MAX, silence_s)
        except NodeFailure:
            body = None
        sentence = error_text(self._raw.first if body is None else body)
        self.first = error_body(PATH, sentence, None, self.status)
        self.end = None

    def _failed(self, sentence: str) -> NodeFailure:
        """Releases before 0.12.6 failed with status 200."""
        body = error_body(PATH, sentence, None, 500)
        answer = NodeAnswer(500, "application/json", body)
        return NodeFailure(self.node_id, "http_5xx", sentence, answer=answer)


class ReadEnd:
    """The end of an answer whose original was read before it was passed on."""

    at_line_start = True

    def __init__(self) -> None:
        self.told = Ending(False)

    def feed(self, chunk: bytes) -> None:
        """What is passed on tells nothing new."""

    def ending(self) -> Ending:
        """What the node said."""
        return self.told


async def translated(
    raw: NodeResponse, answer: Answer, *, streams: bool, silence_s: float
) -> TranslatedResponse:
    """The answer from its first event on. Raises NodeFailure."""
    if raw.status >= 300:
        response = TranslatedResponse(raw, "application/json")
        await response.read_refusal(silence_s)
    elif streams:
        response = TranslatedResponse(raw, "text/event-stream")
        await response.read_stream(answer, silence_s)
    else:
        response = TranslatedResponse(raw, "application/json")
        await response.read_whole(answer, silence_s)
    return response
