"""Scripts: how their text is joined from parts, and the one place that runs them.

A script's header (see `lua/README.md`) says which keys and arguments it takes; the bindings are
written from it, so a caller names them and no position can be mistaken.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aibs.eventstore.commands import Commands
    from aibs.eventstore.keys import Keys

_HEADER = re.compile(r"^-- (Flags|Include|Keys|Args|Replies|Polls|Events): ?(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Header:
    """What a script's header declares."""

    flags: tuple[str, ...]
    includes: tuple[str, ...]
    keys: tuple[str, ...]
    args: tuple[str, ...]
    replies: tuple[str, ...]
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A script ready to run. `sha` is the SHA-1 that EVALSHA takes."""

    name: str
    header: Header
    text: str
    sha: str


def parse_header(text: str) -> Header:
    """The header of a script or an include; absent lines are empty."""
    found = {name: tuple(value.split()) for name, value in _HEADER.findall(text)}
    return Header(
        flags=found.get("Flags", ()),
        includes=found.get("Include", ()),
        keys=found.get("Keys", ()),
        args=found.get("Args", ()),
        replies=found.get("Replies", ()),
        events=found.get("Events", ()),
    )


def source(name: str) -> str:
    """The text of a file of `aibs/lua`, as packaged."""
    return resources.files("aibs.lua").joinpath(name).read_text("utf-8")


def script_names() -> tuple[str, ...]:
    """Every script, by name."""
    files = (entry.name for entry in resources.files("aibs.lua").iterdir())
    return tuple(sorted(name[:-4] for name in files if name.endswith(".lua")))


def _resolve(
    names: Sequence[str],
    overrides: Mapping[str, str],
    order: dict[str, str],
    open_: tuple[str, ...],
) -> None:
    for name in names:
        if name in open_:
            raise ValueError(f"include {name} includes itself by way of {' > '.join(open_)}")
        if name in order:
            continue
        text = overrides.get(name) or source(f"include/{name}.lua")
        _resolve(parse_header(text).includes, overrides, order, (*open_, name))
        order[name] = text


def _bindings(header: Header) -> tuple[str, str]:
    """The lines that name KEYS and plain arguments, and those that check the whole numbers."""
    early, late = [], []
    for position, name in enumerate(header.keys, 1):
        if name.endswith("*"):
            early.append(f"local first_{name[:-1]} = {position}")
        else:
            early.append(f"local {name}_key = KEYS[{position}]")
    for position, declared in enumerate(header.args, 1):
        name, _, kind = declared.partition(":")
        if name.endswith("*"):
            early.append(f"local first_{name[:-1]} = {position}")
        elif kind == "int":
            late.append(f"local {name} = int(ARGV[{position}], '{name}')")
        else:
            early.append(f"local {name} = ARGV[{position}]")
    return "\n".join(early), "\n".join(late)


def build(name: str, overrides: Mapping[str, str] | None = None) -> Script:
    """Join a script from its file, its includes and its bindings.

    `overrides` replaces includes by name; tests step the clock with it.
    """
    body = source(f"{name}.lua")
    header = parse_header(body)
    order: dict[str, str] = {}
    _resolve(("int", *header.includes), overrides or {}, order, ())
    early, late = _bindings(header)
    flags = f" flags={','.join(header.flags)}" if header.flags else ""
    text = "\n".join([f"#!lua{flags}", early, *order.values(), late, body])
    return Script(
        name, header, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    )


@cache
def packaged(name: str) -> Script:
    """A script as the package ships it."""
    return build(name)


class ScriptRunner:
    """Runs scripts by name against one server, loading a script where the server lost it."""

    def __init__(
        self, client: Commands, keys: Keys, overrides: Mapping[str, str] | None = None
    ) -> None:
        self._client = client
        self._keys = keys
        self._scripts: dict[str, Script] = {}
        self._overrides = overrides

    def _script(self, name: str) -> Script:
        if self._overrides is None:
            return packaged(name)
        if name not in self._scripts:
            self._scripts[name] = build(name, self._overrides)
        return self._scripts[name]

    async def run(
        self,
        name: str,
        args: Mapping[str, str | int],
        *,
        more_keys: Sequence[str] = (),
        more_args: Sequence[str | int | bytes] = (),
    ) -> list[Any]:
        """Run a script once and return its answer.

        `args` by the names of the header; `more_keys` and `more_args` for a header's last `NAME*`.
        Redis errors pass through: the caller knows what an unanswered write means.
        """
        script = self._script(name)
        keys = [self._keys.key(key) for key in script.header.keys if not key.endswith("*")]
        keys.extend(more_keys)
        declared = [arg.partition(":")[0] for arg in script.header.args if not arg.endswith("*")]
        if set(declared) != set(args):
            raise ValueError(f"{name} takes {declared}, was given {sorted(args)}")
        values = [*(args[arg] for arg in declared), *more_args]
        try:
            answer = await self._client.evalsha(script.sha, len(keys), *keys, *values)
        except NoScriptError:
            # Scripts vanish at restart, flush and failover. EVAL runs this one and loads it.
            answer = await self._client.eval(script.text, len(keys), *keys, *values)
        if not isinstance(answer, list):
            raise TypeError(f"{name} answered {answer!r}")
        return answer
