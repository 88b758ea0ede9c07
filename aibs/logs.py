"""The one logger set-up: structured lines on standard error."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor


def configure(level: str = "info", log_format: str = "auto") -> None:
    """Send every log line to standard error, as JSON unless that is a terminal (or is forced)."""
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    processors: list[Processor] = (
        [
            _stamped,
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ]
        if console
        else [_json_line]
    )
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _stamped(_: Any, method: str, event: EventDict) -> EventDict:
    """Its level and time. The library's own two steps cost more, and a request has two lines."""
    event["level"] = "error" if method == "exception" else method
    event["timestamp"] = datetime.now(UTC).isoformat(timespec="microseconds")[:-6] + "Z"
    return event


def _json_line(logger: Any, method: str, event: EventDict) -> str:
    event = _stamped(logger, method, event)
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(logger, method, event)
    return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def get(name: str, **fields: Any) -> FilteringBoundLogger:
    """A logger whose lines carry `component=name` and the given fields."""
    logger: FilteringBoundLogger = structlog.get_logger(component=name, **fields)
    return logger
