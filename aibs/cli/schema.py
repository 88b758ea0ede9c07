"""`aibs schema`: the JSON Schema of each document that a command prints with --json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from aibs.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("schema", help=_HELP)(schema)


_HELP = """Print the JSON Schema of a command's --json document; without a name, list the names.

Example: aibs schema audit
"""


def _audit() -> dict[str, Any]:
    from aibs.audit.document import json_schema

    return json_schema()


def _config_check() -> dict[str, Any]:
    from aibs.settings.document import json_schema

    return json_schema()


def _leaks() -> dict[str, Any]:
    from aibs.reports.leaks import json_schema

    return json_schema()


def _status() -> dict[str, Any]:
    from aibs.reports.status import json_schema

    return json_schema()


def _node_hand() -> dict[str, Any]:
    from aibs.reports.hand_document import json_schema

    return json_schema()


def _replay_as_of() -> dict[str, Any]:
    from aibs.replay.as_of import json_schema

    return json_schema()


def _replay_diff() -> dict[str, Any]:
    from aibs.replay.diff import json_schema

    return json_schema()


def _replay_event() -> dict[str, Any]:
    from aibs.replay.line_schema import json_schema

    return json_schema()


def _replay_explain() -> dict[str, Any]:
    from aibs.replay.story import json_schema

    return json_schema()


def _replay_verify() -> dict[str, Any]:
    from aibs.replay.verify import json_schema

    return json_schema()


def _log() -> dict[str, Any]:
    from aibs.replay.header import json_schema

    return json_schema()


def _prove_takeover() -> dict[str, Any]:
    from aibs.proofs.document import json_schema

    return json_schema()


def _smoke() -> dict[str, Any]:
    from aibs.proofs.smoke.document import json_schema

    return json_schema()


def _replay_what_if() -> dict[str, Any]:
    from aibs.replay.what_if.report import json_schema

    return json_schema()


_SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "audit": _audit,
    "prove_takeover": _prove_takeover,
    "config_check": _config_check,
    "leaks": _leaks,
    "log": _log,
    "node_hand": _node_hand,
    "replay_as_of": _replay_as_of,
    "replay_diff": _replay_diff,
    "replay_event": _replay_event,
    "replay_explain": _replay_explain,
    "replay_verify": _replay_verify,
    "replay_what_if": _replay_what_if,
    "smoke": _smoke,
    "status": _status,
}


def schema(
    name: Annotated[str | None, typer.Argument(help="Which document.", show_default=False)] = None,
) -> None:
    """See `_HELP`, which the command prints."""
    if name is None:
        typer.echo("\n".join(sorted(_SCHEMAS)))
        return
    # `config check` is the command's name and `config_check` the document's: both are meant.
    found = _SCHEMAS.get(name.replace("-", "_"))
    if found is None:
        raise ConfigurationError(
            f"There is no document {name!r}.", mend=f"Take one of: {', '.join(sorted(_SCHEMAS))}."
        )
    from aibs.codec import dumps_pretty

    typer.echo(dumps_pretty(found()))
