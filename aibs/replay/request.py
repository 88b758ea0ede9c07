"""What is asked of `aibs replay`, checked together before anything is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aibs.errors import ConfigurationError
from aibs.replay.filters import wanted
from aibs.replay.points import read_point
from aibs.replay.streaming import read_speed
from aibs.replay.what_if.changes import read_changes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aibs.replay.filters import Wanted
    from aibs.replay.points import Point
    from aibs.replay.what_if.changes import Change


@dataclass(frozen=True, slots=True)
class Options:
    """The options as they were typed."""

    since: str | None = None
    until: str | None = None
    nodes: Sequence[str] = ()
    leases: Sequence[str] = ()
    requests: Sequence[str] = ()
    models: Sequence[str] = ()
    holders: Sequence[str] = ()
    types: Sequence[str] = ()
    follow: bool = False
    speed: str | None = None
    as_of: str | None = None
    diff: tuple[str, str] | None = None
    explain: str | None = None
    verify: bool = False
    what_if: Sequence[str] = ()
    export: Path | None = None
    source: Path | None = None
    json: bool = False

    @property
    def modes(self) -> tuple[str, ...]:
        """The options of which one at most is taken."""
        given = {
            "--follow": self.follow,
            "--speed": self.speed is not None,
            "--as-of": self.as_of is not None,
            "--diff": self.diff is not None,
            "--explain": self.explain is not None,
            "--verify": self.verify,
            "--what-if": bool(self.what_if),
            "--export": self.export is not None,
        }
        return tuple(name for name, there in given.items() if there)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they are meant."""

    since: Point | None = None
    until: Point | None = None
    wanted: Wanted = field(default_factory=wanted)
    speed: float | None = None
    as_of: Point | None = None
    diff: tuple[Point, Point] | None = None
    changes: tuple[Change, ...] = ()


STREAMS = ("--follow", "--speed")


def understood(options: Options) -> Asked:
    """What is meant. Raises ConfigurationError with one sentence where it contradicts itself."""
    modes = options.modes
    if len(modes) > 1:
        raise ConfigurationError(
            f"{modes[0]} and {modes[1]} are different questions.", mend="Ask one at a time."
        )
    mode = modes[0] if modes else None
    asked = Asked(
        since=None if options.since is None else read_point(options.since, "--since"),
        until=None if options.until is None else read_point(options.until, "--until"),
        wanted=wanted(
            nodes=options.nodes,
            leases=options.leases,
            requests=options.requests,
            models=options.models,
            holders=options.holders,
            types=options.types,
        ),
        speed=None if options.speed is None else read_speed(options.speed),
        as_of=None if options.as_of is None else read_point(options.as_of, "--as-of"),
        diff=None
        if options.diff is None
        else (read_point(options.diff[0], "--diff"), read_point(options.diff[1], "--diff")),
        changes=read_changes(options.what_if),
    )
    ranged = asked.since is not None or asked.until is not None
    if mode is not None and mode not in STREAMS:
        if not asked.wanted.everything:
            raise ConfigurationError(
                f"{mode} looks at the whole log and takes no filter.",
                mend="Leave out --node, --lease, --request, --model, --holder and --type.",
            )
        if ranged and mode not in ("--export", "--what-if"):
            raise ConfigurationError(f"{mode} takes no --since or --until.", mend="Leave them out.")
    if options.follow and options.source is not None:
        raise ConfigurationError("--follow needs a server; a file does not go on.")
    if options.follow and asked.until is not None:
        raise ConfigurationError("--follow has no end, so it takes no --until.")
    return asked
