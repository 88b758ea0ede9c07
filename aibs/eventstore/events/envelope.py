"""What every event has: where it stands in the log, when, by whom, under which fence or token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict

from aibs.codec import rfc3339
from aibs.errors import CorruptLog

if TYPE_CHECKING:
    from collections.abc import Mapping


class EventData(BaseModel):
    """The data of one event type. Fields of later releases are kept, not dropped."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the log.

    `id` gives the order and tells no time; `at_ms` is the server's clock in milliseconds; `seq` is
    dense, so a reader knows a hole from calm. `data` is the JSON object as stored.
    """

    id: str
    seq: int
    at_ms: int
    type: str
    version: int
    actor: str
    fence: int | None
    token: str | None
    data: dict[str, Any]

    def as_document(self) -> dict[str, Any]:
        """The event as `aibs replay --json` prints it."""
        return {
            "id": self.id,
            "seq": self.seq,
            "at": rfc3339(self.at_ms),
            "type": self.type,
            "v": self.version,
            "actor": self.actor,
            "fence": self.fence,
            "token": self.token,
            "data": self.data,
        }


def parse_entry(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Event:
    """A stream entry as an event. Raises CorruptLog, naming the entry and what is wrong."""
    name = entry_id.decode("ascii", "replace")
    try:
        fence, token = fields[b"fence"], fields[b"token"]
        data = orjson.loads(fields[b"data"])
        if not isinstance(data, dict):
            raise TypeError("data is not a JSON object")
        return Event(
            id=name,
            seq=int(fields[b"seq"]),
            at_ms=int(fields[b"at_ms"]),
            type=fields[b"type"].decode(),
            version=int(fields[b"v"]),
            actor=fields[b"actor"].decode(),
            fence=int(fence) if fence else None,
            token=token.decode() if token else None,
            data=data,
        )
    except KeyError as error:
        missing = error.args[0].decode("ascii", "replace")
        raise CorruptLog(f"Entry {name} of the log has no field {missing}.") from error
    except (ValueError, TypeError) as error:
        raise CorruptLog(f"Entry {name} of the log cannot be read: {error}.") from error
