"""`outrider profile`: what rounds of the embedded engine cost on this machine, and which layers drafts may skip."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.console import progress_bar, refuse
from outrider.config import DEFAULT_MODEL, cache_dir, packaged_data
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outrider.cost import CostTable
    from outrider.engine.drafters.layer_skip import LayerSet

_PLOT_SIZE = (100, 20)


def profile(
    model: Annotated[str, typer.Option(help="Name of a pulled model, or a local folder.")] = DEFAULT_MODEL,
    draft_model: Annotated[str | None, typer.Option(help="Measure this draft model too.")] = None,
    eagle: Annotated[list[Path], typer.Option(help="Measure this EAGLE or EAGLE-3 head too; one of each.")] = [],  # noqa: B006 - typer copies it
    medusa: Annotated[Path | None, typer.Option(help="Measure these Medusa heads too.")] = None,
    int8: Annotated[
        bool, typer.Option(help="Measure draft model and heads with weights in 8 bits, as the engine is to use them.")
    ] = False,
    layer_search: Annotated[
        bool, typer.Option(help="Find the layers that the drafter layer_skip leaves out; takes some minutes.")
    ] = True,
    prompts: Annotated[Path | None, typer.Option(help="Prompts of that search; default: the packaged ones.")] = None,
) -> None:
    """Measure whole rounds, draft steps and memory, and store what the engine reads at its start."""
    from outrider.engine.drafters.layer_skip import write_layer_set
    from outrider.engine.drafters.sources import DraftOptions
    from outrider.engine.engine import Engine, EngineLimits
    from outrider.engine.profile import layers_for, layers_path, table_path, with_drafter
    from outrider.engine.profile import profile as measure
    from outrider.engine.pull import locate
    from outrider.engine.shipped import heads_for
    from outrider.engine.skip_search import find_layers
    from outrider.workloads.suite import load_prompts

    if not layer_search:
        refuse({"--prompts": prompts}, "those of the search for layers, which --no-layer-search leaves out")
    folder = locate(model, cache_dir())
    texts = load_prompts(prompts or packaged_data("workloads") / "tasks.yaml") if layer_search else []
    if layer_search and len(texts) < 2:
        raise ConfigError(f"{prompts}: one prompt finds no layers: half of them find, the others check")
    path, layers, layers_file = table_path(folder, cache_dir()), None, layers_path(folder, cache_dir())
    path.parent.mkdir(parents=True, exist_ok=True)
    with progress_bar() as progress:
        progress("loading the model", 0.0)
        shipped = heads_for(folder, packaged_data("heads"))
        options = DraftOptions(
            locate(draft_model, cache_dir()) if draft_model else None,
            None if layer_search else layers_for(folder, cache_dir()),
            tuple(eagle) or shipped.eagle,
            medusa or shipped.medusa,
            int8,
            has_whole_trees=True,
        )
        engine = Engine(folder, EngineLimits(), options)
        table = measure(engine, folder, progress)
        _write(path, table)  # the search takes longer, and may be interrupted
        if texts and engine.model.config.num_layers > 2:
            prompt_ids = [engine.tokenizer.encode_chat(prompt.messages) for prompt in texts]
            layers = find_layers(engine, table, prompt_ids, progress)
            write_layer_set(layers_file, layers)
            table = with_drafter(engine, table, "layer_skip")
            _write(path, table)
    for line in (*_report(table), *_layer_report(layers)):
        typer.echo(line)
    typer.echo(f"stored in {path}" + ("" if layers is None else f" and {layers_file.name}"))


def _write(path: Path, table: CostTable) -> None:
    path.write_text(table.model_dump_json(indent=1) + "\n", encoding="utf-8")


def plots(table: CostTable) -> Iterator[str]:
    """A picture for each context: milliseconds of a round over rows, one line for each number of sequences."""
    import plotext

    for index, context in enumerate(table.contexts):
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.plot_size(*_PLOT_SIZE)
        for i, count in enumerate(table.num_sequences):
            milliseconds = [row[index] * 1e3 for row in table.round_s[i]]
            plotext.plot(list(table.widths), milliseconds, marker="braille")
            plotext.text(f" {count}", table.widths[-1], milliseconds[-1])
        plotext.title(f"ms of a round, {context} tokens of context; a line for each number of sequences")
        plotext.xlabel("rows of each sequence: draft tokens + 1")
        plotext.xticks(list(table.widths))
        plotext.xlim(table.widths[0], table.widths[-1] + 1)
        plotext.ylim(0, None)
        yield plotext.uncolorize(plotext.build())


def _report(table: CostTable) -> Iterator[str]:
    from outrider.cost import DRAFTED

    yield from plots(table)
    plain_s = table.at(1, 1, table.contexts[0])
    for name, cost in table.drafters.items():
        yield (
            f"{name:<12} first draft token {cost.first_s * 1e3:7.3f} ms, each further {cost.step_s * 1e3:7.3f} ms "
            f"({cost.step_s / plain_s:.2f} of a plain round); a round with {DRAFTED}: {cost.round_s * 1e3:.1f} ms; "
            f"memory {cost.weight_bytes / 1e6:.0f} MB and {cost.bytes_per_token / 1e3:.0f} KB a token"
        )
    yield (
        f"target       weights {table.weight_bytes / 1e6:.0f} MB, read in {table.read_s * 1e3:.1f} ms; "
        f"{table.bytes_per_token / 1e3:.0f} KB a cached token; process {table.resident_bytes / 1e6:.0f} MB"
    )


def _layer_report(layers: LayerSet | None) -> Iterator[str]:
    if layers is None or layers.worth is None:
        return
    worth = layers.worth
    yield (
        f"layer_skip   without layers {', '.join(map(str, layers.skip))} of {layers.num_layers}, "
        f"{'all' if layers.num_head_tokens is None else layers.num_head_tokens} tokens: a draft step costs "
        f"{worth.step_cost:.2f}, accept length {worth.accept_length:.2f} at k {worth.k}, "
        f"{worth.speedup:.2f} times the speed of none on {worth.num_tokens} tokens of other prompts"
    )
    if layers.warning is not None:
        yield f"layer_skip   does not pay here: {layers.warning}"
