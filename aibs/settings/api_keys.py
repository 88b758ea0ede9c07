"""The API keys: from the variable's text, or the file that it names, to names, digests and classes.

    name:key                     the key as a client sends it
    name:key:max_class           and the highest priority that it may ask for
    name:sha256:<hex>[:max_class]  its SHA-256, so that the file holds no secret

Only digests leave this module: no key is kept, shown or logged. A fault names the item or the line,
never what stands in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from aibs.settings.parsing import is_identifier, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE_MAX_BYTES: Final = 1 << 20
KEYS_MAX: Final = 1000
"""Each request's key is compared with all of them."""

MaxClass = Literal["high", "normal", "low"]

MEND: Final = (
    "Write name:key or name:key:max_class, separated by commas, or @ and a file's path with one of "
    "them a line."
)
_CLASSES: Final = ("high", "normal", "low")
_HASHED: Final = "sha256:"
_HEX: Final = re.compile(r"[0-9A-Fa-f]{64}")
_KEY: Final = re.compile(r"[!-~]+")


class InvalidKeys(ValueError):
    """The keys cannot be used. The message is a clause that says why; `mend` what to do."""

    def __init__(self, problem: str, mend: str = MEND) -> None:
        super().__init__(problem)
        self.problem = problem
        self.mend = mend


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. `digest` is its SHA-256; `max_class` the highest priority that it may ask for."""

    name: str
    digest: bytes
    max_class: MaxClass = "high"


@dataclass(frozen=True, slots=True)
class KeySource:
    """The keys, the file that they came from, and what is odd and does no harm."""

    keys: tuple[ApiKey, ...] = ()
    path: Path | None = None
    warnings: tuple[str, ...] = ()


def read_keys(text: str, directory: Path) -> KeySource:
    """The keys of the variable's text; `@path` is relative to `directory`. Raises InvalidKeys."""
    text = text.strip()
    if not text.startswith("@"):
        return KeySource(parse_keys(text))
    try:
        path = directory / Path(text[1:].strip()).expanduser()
    except RuntimeError as error:
        raise InvalidKeys(f"names {shown(text[1:])}, whose home directory is unknown") from error
    return read_keys_file(path)


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """The keys of a comma-separated list; none of an empty one. Raises InvalidKeys."""
    if not text.strip():
        return ()
    items = ((f"item {n}", item.strip()) for n, item in enumerate(text.split(","), 1))
    return _all_different(items, "has ")


def read_keys_file(path: Path) -> KeySource:
    """The keys of a file, one a line. Raises InvalidKeys; a file without a key is a fault, because
    no keys at all would open the gateway to whoever is on the machine.
    """
    shut = "Give the file to the user that runs aibs, and to nobody else: chmod 600."
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "that is no path"
        raise InvalidKeys(
            f"names {shown(path)}, which cannot be read: {reason}",
            "Give the path of a file that this user may read, relative to the working directory.",
        ) from error
    where = f"names {shown(path)}, "
    if mode & stat.S_IWOTH:
        raise InvalidKeys(f"{where}which others may write", shut)
    if len(data) > FILE_MAX_BYTES:
        raise InvalidKeys(f"{where}which is larger than 1 MiB", "Name another file.")
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidKeys(f"{where}which is not UTF-8 text", "Mend the file.") from error
    items = [
        (f"line {n}", text)
        for n, line in enumerate(lines, 1)
        if (text := re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip())
    ]
    keys = _all_different(items, f"{where}which has ")
    if not keys:
        raise InvalidKeys(f"{where}which has no key", "Write one a line, or empty the variable.")
    warnings: tuple[str, ...] = ()
    if mode & stat.S_IROTH:
        if any(not text.partition(":")[2].startswith(_HASHED) for _, text in items):
            raise InvalidKeys(f"{where}which holds a key and which others may read", shut)
        warnings = (f"AIBS_API_KEYS {where}which others may read: it holds only digests.",)
    return KeySource(keys, path, warnings)


def _all_different(items: Iterable[tuple[str, str]], where: str) -> tuple[ApiKey, ...]:
    found: list[ApiKey] = []
    places: dict[str | bytes, str] = {}
    for place, text in items:
        key = _key(place, text, where)
        first = places.setdefault(key.name, place)
        if first != place:
            raise InvalidKeys(
                f"{where}in {place} the name of {first}", "Give each key its own name."
            )
        first = places.setdefault(key.digest, place)
        if first != place:
            raise InvalidKeys(
                f"{where}in {place} the key of {first}",
                "Give each name its own key: the key alone tells who asks.",
            )
        found.append(key)
        if len(found) > KEYS_MAX:
            raise InvalidKeys(f"{where}more than {KEYS_MAX} keys", "Let some of them go.")
    return tuple(found)


def _key(place: str, text: str, where: str) -> ApiKey:
    name, _, rest = text.partition(":")
    if rest.startswith(_HASHED):
        digits, _, highest = rest.removeprefix(_HASHED).partition(":")
        if not _HEX.fullmatch(digits):
            raise InvalidKeys(
                f"{where}in {place} a sha256 that is not 64 hexadecimal digits",
                "Write what `printf %s KEY | sha256sum` prints.",
            )
        digest = bytes.fromhex(digits)
    else:
        key, _, highest = rest.partition(":")
        if not is_identifier(name) or not key:
            raise InvalidKeys(f"{where}as {place} something that is not name:key")
        if not _KEY.fullmatch(key):
            raise InvalidKeys(
                f"{where}in {place} a key with a character that no header can carry",
                "Use printable ASCII without spaces in keys.",
            )
        digest = hashlib.sha256(key.encode()).digest()
    if not is_identifier(name):
        raise InvalidKeys(f"{where}as {place} something that is not name:key")
    if highest and highest not in _CLASSES:
        raise InvalidKeys(f"{where}in {place} a class other than high, normal or low")
    return ApiKey(name, digest, cast("MaxClass", highest or "high"))
