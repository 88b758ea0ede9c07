"""Scripts: how their text is joined from parts, and the one place that runs them.

A script's header (see `lua/README.md`) says which keys and arguments it takes; the bindings are
written from it, so a caller names them and no position can be mistaken.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aibs.eventstore.commands import Commands
    from aibs.eventstore.keys import Keys

CHECK = "check"
"""The runner's argument of a call that brings the script's text to the server."""

IDENTIFY = """#!lua flags=no-writes
local info = redis.call('INFO', 'server')
local _, last = string.find(info, 'run_id:', 1, true)
return string.sub(info, last + 1, last + 40)"""
"""Which process answers: asked by a script, so that it is the one which has the pool's keys."""

_HEADER = re.compile(
    r"^-- (Flags|Include|Exports|Keys|Args|Replies|Polls|Events): ?(.*)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Header:
    """What a script's header declares."""

    flags: tuple[str, ...]
    includes: tuple[str, ...]
    exports: tuple[str, ...]
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
        exports=found.get("Exports", ()),
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


_TOKEN = re.compile(r"""--[^\n]*|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|[.:]?\b[A-Za-z_]\w*""")
_SHARED = re.compile(r"\bshared\.(\w+)")
_COMMENT = re.compile(r"--[^\n]*")
_TABLE_FIELD = re.compile(r"\s*=[^=]")


def _rename(text: str, names: Mapping[str, str]) -> str:
    """Replace free names in Lua: not in comments, texts, fields, or keys of a table."""

    def replaced(match: re.Match[str]) -> str:
        token = match.group()
        if token not in names:
            return token
        before = text[: match.start()].rstrip()[-1:]
        if before in "{," and _TABLE_FIELD.match(text, match.end()):
            return token
        return names[token]

    return _TOKEN.sub(replaced, text)


def _bindings(header: Header) -> tuple[str, str]:
    """The lines that name plain arguments, and those that check the whole numbers."""
    early, late = [], []
    for position, name in enumerate(header.keys, 1):
        if name.endswith("*"):
            early.append(f"local first_{name[:-1]} = {position}")
    # The first argument is the runner's own: whether this call is to check which server runs it.
    for position, declared in enumerate(header.args, 2):
        name, _, kind = declared.partition(":")
        if name.endswith("*"):
            early.append(f"local first_{name[:-1]} = {position}")
        elif kind == "int":
            late.append(f"local {name} = int(ARGV[{position}], '{name}')")
        else:
            early.append(f"local {name} = ARGV[{position}]")
    return "\n".join(early), "\n".join(late)


def _enclosed(text: str) -> str:
    """An include that names its exports shows nothing else.

    What it exports is kept in one table: a function that named each by a local of its own would
    cost its creation more the more of them there are, at every call.
    """
    exports = parse_header(text).exports
    if not exports:
        return text
    for name in exports:
        text = re.sub(rf"^local function {name}\b", f"function {name}", text, flags=re.MULTILINE)
        text = re.sub(rf"^local {name} = ", f"{name} = ", text, flags=re.MULTILINE)
    return f"do\n{text}\nend"


_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end$", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")


def _needed(includes: Sequence[str], body: str) -> list[str]:
    """The includes without the functions that the script never comes to: each call of a script
    creates every function of its text anew.
    """
    functions = {
        (at, match[1]): match.group()
        for at, text in enumerate(includes)
        for match in _FUNCTION.finditer(text)
    }
    words = set(_WORD.findall(body))
    for text in includes:
        words.update(_WORD.findall(_COMMENT.sub("", _FUNCTION.sub("", text))))
    waiting = True
    kept: set[tuple[int, str]] = set()
    while waiting:
        waiting = False
        for key, text in functions.items():
            if key[1] in words and key not in kept:
                kept.add(key)
                words.update(_WORD.findall(_COMMENT.sub("", text)))
                waiting = True
    return [
        _with_only(text, {name for at, name in kept if at == place})
        for place, text in enumerate(includes)
    ]


def _with_only(text: str, names: set[str]) -> str:
    """An include's text with these functions of it, and no others."""
    return _FUNCTION.sub(lambda match: match.group() if match[1] in names else "", text)


def build(name: str, overrides: Mapping[str, str] | None = None, server: str = "") -> Script:
    """Join a script from its file, its includes and its bindings.

    `overrides` replaces includes by name; tests step the clock with it. `server` is the run_id of
    the process that the text is for: another one does not have the text, so that a restarted or
    promoted server is recognised without asking at each call.
    """
    body = source(f"{name}.lua")
    header = parse_header(body)
    order: dict[str, str] = {}
    _resolve(("int", *header.includes), overrides or {}, order, ())
    early, late = _bindings(header)
    flags = f" flags={','.join(header.flags)}" if header.flags else ""
    about = f"local text_server, check_server = '{server}', ARGV[1] == '{CHECK}'"
    names = {f"{key}_key": f"KEYS[{i}]" for i, key in enumerate(header.keys, 1)}
    for include in order.values():
        names |= {name: f"shared.{name}" for name in parse_header(include).exports}
    whole, *parts = map(_enclosed, _needed([order.pop("int"), *order.values()], late + body))
    # The numbers are checked first of all, so that the includes may name them too.
    rest = _rename("\n".join([whole, late, *parts, body]), names)
    # Made with room for all of its fields: a table that grows is laid out anew each time.
    fields = ", ".join(f"{name} = false" for name in sorted(set(_SHARED.findall(rest))))
    shared = f"local shared = {{ {fields} }}"
    text = "\n".join([f"#!lua{flags}", about, shared, early, rest])
    return Script(
        name, header, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    )


@lru_cache(maxsize=256)
def packaged(name: str, server: str = "") -> Script:
    """A script as the package ships it, for one server process."""
    return build(name, None, server)


class ScriptRunner:
    """Runs scripts by name against one server, loading a script where the server lost it."""

    def __init__(
        self, client: Commands, keys: Keys, overrides: Mapping[str, str] | None = None
    ) -> None:
        self._client = client
        self._keys = keys
        self._overrides = overrides
        self._server = ""
        self._calls: dict[str, _Call] = {}

    def _call(self, name: str) -> _Call:
        call = self._calls.get(name)
        if call is None or call.server != self._server:
            script = (
                packaged(name, self._server)
                if self._overrides is None
                else build(name, self._overrides, self._server)
            )
            call = _Call(script, self._server, self._keys)
            self._calls[name] = call
        return call

    async def run(
        self,
        name: str,
        args: Mapping[str, str | int | bytes],
        *,
        more_keys: Sequence[str] = (),
        more_args: Sequence[str | int | bytes] = (),
    ) -> list[Any]:
        """Run a script once and return its answer.

        `args` by the names of the header; `more_keys` and `more_args` for a header's last `NAME*`.
        Redis errors pass through: the caller knows what an unanswered write means.
        """
        call = self._call(name)
        keys = [*call.keys, *more_keys]
        values = [*call.values(args), *more_args]
        try:
            answer = await self._client.evalsha(call.script.sha, len(keys), *keys, "", *values)
        except NoScriptError:
            # Scripts vanish at restart, flush and failover. EVAL runs this one and loads it, and
            # the script itself checks that the text which stays there names that very server.
            self._server = _text(await self._client.eval(IDENTIFY, 1, self._keys.key("pool")))
            text = self._call(name).script.text
            answer = await self._client.eval(text, len(keys), *keys, CHECK, *values)
        if not isinstance(answer, list):
            raise TypeError(f"{name} answered {answer!r}")
        return answer


class _Call:
    """What of a script's call is the same each time."""

    def __init__(self, script: Script, server: str, keys: Keys) -> None:
        self.script = script
        self.server = server
        self.keys = [keys.key(key) for key in script.header.keys if not key.endswith("*")]
        self._args = [arg.partition(":")[0] for arg in script.header.args if not arg.endswith("*")]

    def values(self, args: Mapping[str, str | int | bytes]) -> list[str | int | bytes]:
        """The named arguments in the header's order."""
        if len(args) != len(self._args):
            raise ValueError(f"{self.script.name} takes {self._args}, was given {sorted(args)}")
        try:
            return [args[name] for name in self._args]
        except KeyError as error:
            raise ValueError(f"{self.script.name} was not given {error}") from error


def _text(item: Any) -> str:
    return item.decode() if isinstance(item, bytes) else str(item)
