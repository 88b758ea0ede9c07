"""Lines of a file, plain, gzip or zstd by its name; and how such a file is written.

A file that ends early, or that is damaged in the middle, gives what stands before the fault, and
the fault. Memory is bounded by the longest line.
"""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

CHUNK_BYTES = 262_144
LINE_BYTES_MAX = 67_108_864
GZIP_LEVEL = 6
ZSTD_LEVEL = 3


class Cut(Exception):
    """Reading stopped before the file's end. The message is a clause."""


def method_of(path: Path) -> str:
    """gzip, zstd or plain, by the file's name."""
    match path.suffix.lower():
        case ".gz":
            return "gzip"
        case ".zst" | ".zstd":
            return "zstd"
    return "plain"


class Sink(Protocol):
    """What takes bytes until it is closed."""

    def write(self, data: bytes, /) -> int: ...
    def close(self) -> None: ...


class _AsItIs:
    """Bytes pass unchanged; closing leaves the target open."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target

    def write(self, data: bytes, /) -> int:
        return self._target.write(data)

    def close(self) -> None:
        pass


def compressor(method: str, target: BinaryIO) -> Sink:
    """A sink whose bytes reach `target` compressed. Equal bytes give equal bytes; closing it leaves
    `target` open.
    """
    if method == "gzip":
        # Without a name and a time: those of another day would make another file.
        return cast(
            "Sink", gzip.GzipFile("", "wb", compresslevel=GZIP_LEVEL, fileobj=target, mtime=0)
        )
    if method == "zstd":
        maker = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
        return cast("Sink", maker.stream_writer(target, closefd=False))
    return _AsItIs(target)


def lines(path: Path) -> Iterator[bytes]:
    """Whole lines, without their ends. Raises Cut where the file does not go on as it should, and
    OSError where it cannot be read at all.
    """
    rest = b""
    with path.open("rb") as file:
        stream = _decompressed(method_of(path), file)
        while True:
            try:
                # One step at a time: what stands right before a fault is read.
                chunk = stream.read1(CHUNK_BYTES)
            except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
                raise Cut(_why(error)) from error
            if not chunk:
                break
            if b"\n" not in chunk:
                rest += chunk
                if len(rest) > LINE_BYTES_MAX:
                    raise Cut("a line does not end")
                continue
            whole = (rest + chunk).split(b"\n")
            rest = whole.pop()
            yield from whole
    if rest:
        raise Cut("it ends in the middle of a line")


def _decompressed(method: str, file: BufferedReader) -> Any:
    if method == "gzip":
        return gzip.GzipFile(fileobj=file, mode="rb")
    if method == "zstd":
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return file


def _why(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "its compressed data ends early"
    return f"its compressed data is damaged ({error})"
