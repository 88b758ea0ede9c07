"""What the Placements API takes and gives: bodies, and the ids of leases. Values only.

A lease's id carries its request's: `<16 hex digits>.<request_id>`, or `~` and base64 where the
request's id has other characters. So a lease that has ended is found again by its id alone, at
every instance and after a restart: the pool remembers ended requests, not ended leases.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from aibs.codec import dumps_text
from aibs.gateway.control.answering import Refused
from aibs.placement.values import REQUEST_ID_BYTES_MAX

TTL_MIN_S: Final = 1.0

CALL_ID_BYTES_MAX: Final = 256
TOKEN_CHARS_MAX: Final = 32

_READABLE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LEASE_ID: Final = re.compile(r"[0-9a-f]{16}([.~])([A-Za-z0-9._=-]{1,200})")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
"""What stands in events as it came."""

Priority = Literal["high", "normal", "low"]

_TAKES: Final = {
    "request_id": f"a text of 1 to {REQUEST_ID_BYTES_MAX} bytes that names the request",
    "model": "a model of the roster, as text",
    "role": "a role of the roster, as text",
    "priority": "high, normal or low",
    "ttl_seconds": f"a number of seconds from {TTL_MIN_S:g} on",
    "wait_seconds": "a number of seconds from 0 on",
    "token": "the lease's token, as POST /placements gave it",
    "call_id": f"a text of at most {CALL_ID_BYTES_MAX} characters",
    "outcome": "completed, cancelled or failed",
}
"""What each field takes, as a sentence to a client ends."""

SHOWN_MAX: Final = 40
"""Characters of a wrong value that are repeated."""


class Body(BaseModel):
    """A body. Fields that it does not know are let pass: a client may be newer than its server."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, strict=True, use_attribute_docstrings=True
    )


def _text(value: Any) -> Any:
    """A token is a number that some clients keep as one."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return str(value)
    return value


class PlacementBody(Body):
    """What is asked for."""

    request_id: str = Field(min_length=1)
    """Names the request: the same again gets the first answer. At most 128 bytes."""
    model: str | None = None
    """A model of the roster; with `role`, a worker of that model that has the role."""
    role: str | None = None
    """A role of the roster."""
    priority: Priority | None = None
    """The class in the queue; at most the API key's own. Without it normal, or the key's where that
    is lower."""
    ttl_seconds: float | None = Field(None, ge=TTL_MIN_S, allow_inf_nan=False)
    """How long the lease lives without a heartbeat; at most, and without it,
    AIBS_MODEL_CLUSTER_ACTIVE_LEASE_TTL_SECONDS."""
    wait_seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    """How long to wait for a place; without it the request does not wait. At most
    AIBS_MODEL_CLUSTER_QUEUE_MAX_WAIT_SECONDS."""


class HeartbeatBody(Body):
    """A holder says that it goes on."""

    token: Annotated[str, BeforeValidator(_text)] = Field(min_length=1, max_length=TOKEN_CHARS_MAX)
    """The lease's."""


class ReleaseBody(HeartbeatBody):
    """A holder says that its work is over."""

    call_id: str = Field("", max_length=CALL_ID_BYTES_MAX)
    """Names this release: the same again is the same one. Without it every release by this token
    is one."""
    outcome: Literal["completed", "cancelled", "failed"] = "completed"
    """How the work ended. A node that failed its work is told by `failed`."""


class Placement(Body):
    """201: a lease. `unload_first` has idle models that its holder must unload before it loads."""

    lease_id: str
    token: str
    node_id: str
    node_base_url: str
    model: str
    worker_id: str
    warm: bool
    unload_first: list[str]
    expires_in_ms: int
    deadline: str
    queue_ms: int
    role: str | None
    heartbeat_every_ms: int
    """Renew at least so often; a lease that is not for three times as long is shown as late."""


class NodeDenial(Body):
    """Why one node did not take the request."""

    node_id: str
    reason: str
    detail: str


class Denial(Body):
    """No lease: why, for whom, and when asking again may help."""

    reason: str
    detail: str
    nodes: list[NodeDenial]
    retry_after_ms: int | None
    position: int | None


class Renewal(Body):
    """The lease lives on."""

    expires_in_ms: int


class Refusal(Body):
    """Why a request was not done."""

    reason: str
    detail: str


BodyType = TypeVar("BodyType", bound=Body)


def read_body(kind: type[BodyType], document: dict[str, Any]) -> BodyType:
    """The body. Raises Refused with what is wrong with which field."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0])
        raise bad_field(name, _what(document, name)) from error


def bad_field(name: str, what: str) -> Refused:
    """`The field priority is "top": it has to be high, normal or low.`"""
    return Refused(400, "bad_request", f"The field {name} {what}: it has to be {_TAKES[name]}.")


def require_request_id(request_id: str) -> None:
    """Raises Refused where it could not stand in events and in ids."""
    if not request_id.isprintable():
        raise bad_field("request_id", "has a character that cannot be printed")
    if len(request_id.encode()) > REQUEST_ID_BYTES_MAX:
        raise bad_field("request_id", f"is longer than {REQUEST_ID_BYTES_MAX} bytes")


def _what(document: dict[str, Any], name: str) -> str:
    """What is wrong with a field that its type does not let pass."""
    if name not in document:
        return "is missing"
    value = document[name]
    if value == "":
        return "is empty"
    shown = dumps_text(value)
    return f"is {shown if len(shown) <= SHOWN_MAX else f'{shown[:SHOWN_MAX]}…'}"


def new_lease_id(request_id: str) -> str:
    """An id of its own that carries its request's."""
    if _READABLE.fullmatch(request_id):
        carried = f".{request_id}"
    else:
        carried = "~" + base64.urlsafe_b64encode(request_id.encode()).decode().rstrip("=")
    return secrets.token_hex(8) + carried


def request_id_of(lease_id: str) -> str | None:
    """The request of a lease's id; None where it is no id of ours."""
    found = _LEASE_ID.fullmatch(lease_id)
    if found is None:
        return None
    kind, carried = found.groups()
    if kind == ".":
        return carried if _READABLE.fullmatch(carried) else None
    try:
        raw = base64.b64decode(carried + "=" * (-len(carried) % 4), altchars="-_", validate=True)
        request_id = raw.decode()
    except (binascii.Error, ValueError):
        return None
    return request_id if 0 < len(raw) <= REQUEST_ID_BYTES_MAX else None


def call_id_of(body: ReleaseBody) -> str:
    """The release's name as events may have it; another text is told by its hash."""
    call_id = body.call_id or f"token-{body.token}"
    if _PLAIN.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
