"""The command tree, and the one place where an error becomes a sentence and an exit status."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from aibs.errors import AibsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

app = typer.Typer(
    name="aibs",
    help="Global model scheduler for a shared fleet of Ollama boxes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from aibs import __version__

        typer.echo(f"aibs {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def _register() -> None:
    from aibs.cli import (
        audit,
        config,
        demo,
        leaks,
        monitor,
        node,
        prove_takeover,
        replay,
        schema,
        serve,
        smoke,
        status,
        up,
    )

    commands = (
        demo,
        up,
        monitor,
        serve,
        audit,
        status,
        leaks,
        replay,
        prove_takeover,
        smoke,
        node,
        config,
        schema,
    )
    for module in commands:
        module.register(app)


def report(error: AibsError) -> None:
    """Print an error for a person on standard error: what and where, then the mend."""
    typer.echo(f"aibs: {error}", err=True)


def _leaves(group: BaseExceptionGroup[AibsError]) -> Iterator[AibsError]:
    for member in group.exceptions:
        if isinstance(member, BaseExceptionGroup):
            yield from _leaves(member)
        else:
            yield member


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 good, 1 the check says no, 2 usage or configuration,
    3 something outside could not be reached.
    """
    _register()
    try:
        app(args=None if arguments is None else list(arguments))
    except AibsError as error:
        report(error)
        sys.exit(error.exit_status)
    except BaseExceptionGroup as group:
        # Tasks that work side by side fail as a group; a person reads one sentence each.
        ours, others = group.split(AibsError)
        if ours is None or others is not None:
            raise
        errors = list(_leaves(ours))
        for one in errors:
            report(one)
        sys.exit(errors[0].exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output left (`aibs audit | head`): nothing more to say.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(0)
