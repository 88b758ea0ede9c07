"""The one logger set-up: structured lines on standard error."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson
import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor


def configure(level: str = "info", log_format: str = "auto") -> None:
    """Send every log line to standard error, as JSON unless that is a terminal (or is forced)."""
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    wrapper = structlog.make_filtering_bound_logger(logging.getLevelName(level.upper()))
    processors: list[Processor] = [_json_text]
    factory: Any = structlog.WriteLoggerFactory(sys.stderr)
    # A stream of text alone, such as tests put in its place, has no buffer.
    raw = getattr(sys.stderr, "buffer", None)
    if console:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        processors = [_stamped, structlog.processors.format_exc_info, renderer]
    elif raw is not None:
        wrapper, factory = _in_one_step(wrapper), structlog.BytesLoggerFactory(raw)
    structlog.configure(
        processors=processors,
        wrapper_class=wrapper,
        logger_factory=factory,
        cache_logger_on_first_use=False,
    )


def _stamped(_: Any, method: str, event: EventDict) -> EventDict:
    """Its level and time. The library's own two steps cost more, and a request has two lines."""
    event["level"] = "error" if method == "exception" else method
    second, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
    event["timestamp"] = f"{_to_the_second(second)}.{microseconds:06}Z"
    return event


@lru_cache(maxsize=2)
def _to_the_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _in_one_step(filtering: type[FilteringBoundLogger]) -> type[FilteringBoundLogger]:
    """The library's loggers without its chain of steps, which costs more than the line."""

    # The library makes the class at run time.
    class JsonLogger(filtering):  # type: ignore[misc, valid-type]
        def _proxy_to_logger(
            self, method_name: str, event: str | None = None, *_: object, **fields: Any
        ) -> None:
            line = _json_line(method_name, {**self._context, **fields, "event": event})
            self._logger.msg(line)

    return JsonLogger


def _json_line(method: str, event: EventDict) -> bytes:
    event = _stamped(None, method, event)
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(None, method, event)
    try:
        return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Half of a surrogate pair, or a number beyond 64 bits: no reason to break who logs.
        return orjson.dumps({str(name): repr(value) for name, value in event.items()})


def _json_text(_: Any, method: str, event: EventDict) -> str:
    return _json_line(method, event).decode()


def get(name: str, **fields: Any) -> FilteringBoundLogger:
    """A logger whose lines carry `component=name` and the given fields."""
    logger: FilteringBoundLogger = structlog.get_logger(component=name, **fields)
    return logger
