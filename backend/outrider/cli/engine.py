"""`outrider engine`: the embedded engine as a server of its own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import run_async
from outrider.config import DEFAULT_MODEL, cache_dir, packaged_data


def engine(  # noqa: PLR0913 - one parameter per flag
    model: Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")] = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 30000,
    max_running: Annotated[int, typer.Option(min=1, help="Requests in one step.")] = 16,
    max_total_tokens: Annotated[int, typer.Option(min=256, help="Size of the key/value cache, in tokens.")] = 32768,
    context_length: Annotated[int | None, typer.Option(min=16, help="Shorter context than the model's.")] = None,
    draft_model: Annotated[
        str | None, typer.Option(help="Smaller model with the same tokenizer, for drafts.")
    ] = None,
    layer_skip: Annotated[
        Path | None, typer.Option(help="Layer set of the drafter layer_skip (JSON), instead of the profile's.")
    ] = None,
    eagle: Annotated[list[Path], typer.Option(help="Folder of an EAGLE or EAGLE-3 head; one of each.")] = [],  # noqa: B006 - typer copies it
    medusa: Annotated[Path | None, typer.Option(help="Folder of Medusa heads.")] = None,
    shipped_heads: Annotated[bool, typer.Option(help="Use the heads that come with Outrider for this model.")] = True,
    int8: Annotated[bool, typer.Option(help="Draft model and heads with weights in 8 bits.")] = False,
    lossy_medusa: Annotated[
        bool, typer.Option(help="Accept Medusa's drafts by typical acceptance: LOSSY, it changes what is sampled.")
    ] = False,
    num_threads: Annotated[int | None, typer.Option(min=1, help="Threads of the tensor library.")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="Name in answers and in /v1/models.")] = None,
    exit_with_stdin: Annotated[bool, typer.Option(help="Stop when standard input ends.")] = False,
) -> None:
    """Serve one model over SGLang's protocol, without a gateway before it."""
    import torch

    from outrider.engine.drafters.sources import DraftOptions
    from outrider.engine.engine import EngineLimits
    from outrider.engine.info import ServerOptions
    from outrider.engine.profile import layers_for, table_path
    from outrider.engine.pull import locate
    from outrider.engine.server import run
    from outrider.engine.shipped import Heads, heads_for

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    folder = locate(model, cache_dir())
    shipped = heads_for(folder, packaged_data("heads")) if shipped_heads else Heads()
    options = ServerOptions(
        model=folder,
        served_model_name=served_model_name or Path(model).name,
        host=host,
        port=port,
        limits=EngineLimits(max_running, max_total_tokens, context_length),
        drafting=DraftOptions(
            locate(draft_model, cache_dir()) if draft_model else None,
            layers_for(folder, cache_dir(), layer_skip),
            tuple(eagle) or shipped.eagle,
            medusa or shipped.medusa,
            int8,
            lossy_medusa,
        ),
        cost_table=table_path(folder, cache_dir()),
        exits_with_stdin=exit_with_stdin,
    )
    log = logging.getLogger("outrider.engine")
    log.info("loading %s", options.model)
    run_async(run(options, lambda url: log.info("ready on %s", url)))
