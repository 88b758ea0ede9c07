"""A log in a file: NDJSON, a header first, then one event a line; gzip or zstd by the file's name.

Equal events give equal bytes, so a file that is read and written again is the same file.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aibs.codec import dumps
from aibs.errors import ConfigurationError
from aibs.replay.compression import Cut, Sink, compressor, lines, method_of
from aibs.replay.entries import as_line, read_line
from aibs.replay.header import LogHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import BinaryIO

    from aibs.replay.entries import Item

COPY_BYTES = 1_048_576


@dataclass(frozen=True, slots=True)
class Fault:
    """Where a file stopped being readable. `detail` is a clause; `after_id` the last event read."""

    file: str
    line: int
    after_id: str | None
    detail: str

    def __str__(self) -> str:
        where = "its header" if self.after_id is None else f"event {self.after_id}"
        return (
            f"{self.file} is cut or damaged after line {self.line} ({where}): {self.detail}. "
            "What stands before was read."
        )


class ArchiveReader:
    """An exported log. `fault` is known once `items` was read to its end.

    Raises ConfigurationError where the file is not there, or is not an exported log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault: Fault | None = None
        try:
            first = next(lines(path), None)
        except Cut as error:
            raise ConfigurationError(
                f"{path} cannot be read: {error}, before its header was read."
            ) from error
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
        if first is None:
            raise ConfigurationError(f"{path} has no header: it is empty, or was cut.")
        self.header = read_header(first, str(path))

    def items(self) -> Iterator[Item]:
        """Every event and every damaged entry, as they stand. Can be read again."""
        number, last_id, self.fault = 1, None, None
        found = lines(self.path)
        next(found)
        try:
            for number, line in enumerate(found, 2):
                item = read_line(line, number)
                last_id = item.id or last_id
                yield item
        except Cut as error:
            self.fault = Fault(str(self.path), number, last_id, str(error))
            return
        except OSError as error:
            self.fault = Fault(str(self.path), number, last_id, error.strerror or str(error))
            return
        if number - 1 < self.header.count:
            missing = self.header.count - (number - 1)
            told = f"{missing} of {self.header.count} events are missing"
            self.fault = Fault(str(self.path), number, last_id, told)


class ArchiveWriter:
    """Writes an exported log. Nothing stands under its name before `finish`, and nothing stays
    behind where it is not reached.

    The header counts what follows it, so the events are written apart and set behind it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.first_id: str | None = None
        self.last_id: str | None = None
        unique = secrets.token_hex(4)
        self._body = path.with_name(f".{path.name}.{unique}.events")
        self._part = path.with_name(f".{path.name}.{unique}.part")
        self._file: BinaryIO | None = None
        self._sink: Sink | None = None

    def __enter__(self) -> Self:
        if self.path.is_dir():
            raise ConfigurationError(f"{self.path} is a directory.", mend="Name a file.")
        try:
            self._file = self._body.open("xb")
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be written: {error.strerror}.") from error
        self._sink = compressor(method_of(self.path), self._file)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._body.unlink(missing_ok=True)
        self._part.unlink(missing_ok=True)

    def add(self, item: Item) -> None:
        """One more event."""
        assert self._sink is not None
        self._sink.write(as_line(item))
        self.count += 1
        if item.id is not None:
            self.first_id = self.first_id or item.id
            self.last_id = item.id

    def finish(self, header: LogHeader) -> None:
        """Set the header before the events, and the file under its name."""
        assert self._sink is not None
        assert self._file is not None
        self._sink.close()
        self._file.close()
        with self._part.open("xb") as whole:
            first = compressor(method_of(self.path), whole)
            first.write(dumps(header.model_dump(mode="json", by_alias=True)) + b"\n")
            first.close()
            with self._body.open("rb") as body:
                shutil.copyfileobj(body, whole, COPY_BYTES)
            whole.flush()
            os.fsync(whole.fileno())
        self._part.replace(self.path)
