"""Lines of the log: one JSON object each, whatever is logged and wherever it goes."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from aibs import logs
from aibs.codec import loads

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()


class Raw(io.TextIOWrapper):
    """Standard error with the bytes that went there."""

    def __init__(self) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding="utf-8")


def lines_of(text: bytes | str) -> list[Any]:
    return [loads(line) for line in text.splitlines()]


def test_a_line_has_its_level_time_component_and_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = Raw()
    monkeypatch.setattr(sys, "stderr", raw)
    logs.configure("info", "json")
    log = logs.get("aibs.test", one=1).bind(two=2)
    log.debug("not_this")
    log.info("said", three=[3])
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("failed")
    said, failed = lines_of(raw.bytes.getvalue())
    stamp = said.pop("timestamp")
    assert (len(stamp), stamp[10], stamp[-1]) == (27, "T", "Z")
    wanted = {"component": "aibs.test", "one": 1, "two": 2, "three": [3]}
    assert said == {"event": "said", "level": "info", **wanted}
    assert failed["level"] == "error"
    assert "ValueError: broken" in failed["exception"]


def test_a_stream_of_text_alone_gets_the_same_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    logs.configure("info", "json")
    logs.get("aibs.test").info("said", number=1)
    (line,) = lines_of(text.getvalue())
    assert (line["event"], line["number"], line["level"]) == ("said", 1, "info")


@pytest.mark.parametrize("value", ["\ud800", 2**80, {1, 2}, b"bytes", float("nan")])
def test_what_json_cannot_hold_breaks_nobody_who_logs_it(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = Raw()
    monkeypatch.setattr(sys, "stderr", raw)
    logs.configure("info", "json")
    logs.get("aibs.test").info("said", value=value)
    (line,) = lines_of(raw.bytes.getvalue())
    assert "said" in line["event"]
    assert "value" in line
