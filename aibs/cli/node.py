"""`aibs node`: simulated nodes, and an operator's hand on real ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from aibs.ollama.sim import SimServer

node = typer.Typer(
    name="node",
    help="A simulated Ollama node, and an operator's hand on real ones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def register(app: typer.Typer) -> None:
    """Add the commands to the tree."""
    from aibs.cli import node_hand

    node_hand.register(node)
    app.add_typer(node)


_SIM_HELP = """Serve a simulated Ollama node, which answers as a real one does and loads nothing.

Prints its URL once it is ready, and runs until Ctrl-C or SIGTERM. Sizes are decimal: 24GB, 500MB,
or 24 for GB. Faults are switched on over HTTP: POST URL/_sim/faults, GET URL/_sim/stats,
POST URL/_sim/reset.

Example: aibs node sim --port 11435 --vram-gb 90 --model llama3:70b=43GB --embedding bge-m3=1.2GB
--loaded llama3:70b --load-seconds 2
"""


@node.command("sim", help=_SIM_HELP)
def sim(
    vram_gb: Annotated[str, typer.Option("--vram-gb", help="GPU memory; 0: no GPU.")],
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 picks a free one.")
    ] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SIZE", help="An installed model; repeatable.")
    ] = None,
    embedding: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SIZE", help="An installed embedding model.")
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=OTHER", help="A second name, as `ollama cp` makes it."),
    ] = None,
    loaded: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A model resident from the start.")
    ] = None,
    profile: Annotated[
        str, typer.Option(help="The version to be: 0.9, 0.12, 0.30, 0.32, or any such as 0.5.13.")
    ] = "0.32",
    load_seconds: Annotated[float, typer.Option(help="How long a load takes.")] = 0.0,
    unload_seconds: Annotated[float, typer.Option(help="How long an unload takes.")] = 0.0,
    token_seconds: Annotated[float, typer.Option(help="How long a token takes.")] = 0.0,
    num_parallel: Annotated[
        int | None, typer.Option(min=1, help="OLLAMA_NUM_PARALLEL; the version's where absent.")
    ] = None,
    max_loaded: Annotated[
        int | None,
        typer.Option(min=1, help="OLLAMA_MAX_LOADED_MODELS; the version's where absent."),
    ] = None,
    count: Annotated[int, typer.Option(help="So many nodes, at URL/n/0, URL/n/1 and so on.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the URLs as JSON.")] = False,
) -> None:
    """See `_SIM_HELP`, which the command prints."""
    import asyncio

    from aibs.ollama.sim.options import NodeWords, specs_of
    from aibs.ollama.sim.process import serve

    words = NodeWords(
        vram_gb=vram_gb,
        models=model or (),
        embeddings=embedding or (),
        aliases=alias or (),
        loaded=loaded or (),
        profile=profile,
        load_seconds=load_seconds,
        unload_seconds=unload_seconds,
        token_seconds=token_seconds,
        num_parallel=num_parallel,
        max_loaded=max_loaded,
        count=count,
    )

    def ready(server: SimServer) -> None:
        typer.echo(_ready_line(server.urls, as_json))

    asyncio.run(serve(specs_of(words), host=host, port=port, on_ready=ready))


def _ready_line(urls: tuple[str, ...], as_json: bool) -> str:
    if as_json:
        return json.dumps({"schema": "aibs.node.sim/1", "urls": list(urls)})
    return urls[0] if len(urls) == 1 else f"{urls[0]} to {urls[-1]}"
