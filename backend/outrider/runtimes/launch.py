"""What starts a lane: the command line and the environment, made from its profile. Starts nothing itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outrider.errors import SetupError
from outrider.profiles import TOKEN_MAP, LaneSection, ParallelSection, SGLangSection, SpeculationSection
from outrider.runtimes import guard, sglang_env

HOST = "127.0.0.1"
#: How long a lane may take to end by itself before it is killed.
STOP_GRACE_S = 5.0

_ALGORITHMS = {"ngram": "NGRAM", "eagle2": "EAGLE", "eagle3": "EAGLE3", "draft_model": "STANDALONE"}

#: Turns a model's name into what the server can load: the folder of a pulled model, or the name as it is.
Locate = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Launch:
    """A process to start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] | None = None
    """All variables; None inherits ours."""
    added: Mapping[str, str] = field(default_factory=dict)
    """Those of `environment` that are not ours, for people."""


def engine_launch(section: LaneSection, port: int) -> Launch:
    """An embedded engine, which ends with its standard input."""
    command = [sys.executable, "-m", "outrider", "engine", "--model", section.model]
    command += ["--host", HOST, "--port", str(port), "--max-running", str(section.max_running)]
    command += ["--max-total-tokens", str(section.max_total_tokens), "--exit-with-stdin"]
    command += _given({
        "--draft-model": section.draft_model,
        "--layer-skip": section.layer_skip,
        "--context-length": section.context_length,
        "--num-threads": section.num_threads,
        "--served-model-name": section.served_model_name,
    })  # fmt: skip
    return Launch(tuple(command))


def sglang_launch(section: SGLangSection, port: int, locate: Locate, inherited: Mapping[str, str]) -> Launch:
    """A SGLang server under a guard that lets no process of it outlive us. SetupError without an interpreter."""
    command = [str(interpreter(section)), "-m", "sglang.launch_server", *server_arguments(section, port, locate)]
    environment = dict(inherited)
    if section.device == "cpu":
        environment = sglang_env.cpu_variables(inherited)
    if section.gpus:
        # NVML, by which the numbers are looked up and shown, counts in this order; CUDA by itself the fastest first.
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, section.gpus))
    added = {name: value for name, value in environment.items() if inherited.get(name) != value}
    return Launch(guard.guarded(command, STOP_GRACE_S), environment, added)


def local_launch(section: SGLangSection, port: int, locate: Locate, inherited: Mapping[str, str]) -> Launch:
    """The same, to be started here and now. SetupError also names a folder that is not there: SGLang would take half
    a minute to see it, and take its path for the name of something to fetch."""
    launch = sglang_launch(section, port, locate, inherited)
    named = {"model": section.model, "speculation.draft": section.speculation.draft}
    for key, path in ((key, Path(locate(name))) for key, name in named.items() if name is not None):
        if path.is_absolute() and not path.exists():
            raise SetupError(f"{key}: there is no {path}")
    return launch


def server_arguments(section: SGLangSection, port: int, locate: Locate, *, rank: int = 0) -> list[str]:
    """What follows `python -m sglang.launch_server`, on the machine of that rank."""
    is_cpu = section.device == "cpu"
    arguments = ["--model-path", locate(section.model), "--served-model-name", served_name(section)]
    arguments += ["--host", HOST, "--port", str(port), "--device", section.device]
    arguments += ["--attention-backend", attention_backend(section)]
    # A request's law is what it says: with the model's own defaults SGLang would penalise and cut unseen by anybody.
    arguments += ["--sampling-defaults", "openai"]
    arguments += ["--max-running-requests", str(section.max_running), "--enable-metrics", "--enable-cache-report"]
    arguments += _given({
        "--dtype": section.dtype or ("float32" if is_cpu else None),
        "--max-total-tokens": section.max_total_tokens,
        "--context-length": section.context_length,
    })  # fmt: skip
    if is_cpu:
        # Idle processes of SGLang spin otherwise; CUDA graphs are for CUDA; warming up takes longer than it saves.
        arguments += ["--sleep-on-idle", "--disable-cuda-graph", "--skip-server-warmup"]
    if _has_no_prefixes(section):
        arguments.append("--disable-radix-cache")
    return [
        *arguments,
        *_speculation(section.speculation, locate),
        *_parallel(section.parallel, rank),
        *section.flags,
    ]


def served_name(section: SGLangSection) -> str:
    """The name by which clients ask for its model."""
    return section.served_model_name or Path(section.model).name


def attention_backend(section: SGLangSection) -> str:
    """As the profile says, or the one for its device."""
    return section.attention_backend or (sglang_env.ATTENTION_BACKEND if section.device == "cpu" else "flashinfer")


def _has_no_prefixes(section: SGLangSection) -> bool:
    if section.radix_cache is None:
        return section.speculation.drafter == "ngram"
    return not section.radix_cache


def _speculation(how: SpeculationSection, locate: Locate) -> list[str]:
    if how.drafter == "off":
        return []
    arguments = ["--speculative-algorithm", _ALGORITHMS[how.drafter]]
    arguments += ["--speculative-num-draft-tokens", str(how.num_verified)]
    if how.drafter == "ngram":
        return [*arguments, "--speculative-ngram-max-bfs-breadth", str(how.top_k)]
    if how.draft is not None:
        draft = locate(how.draft)
        arguments += ["--speculative-draft-model-path", draft]
        # SGLang finds an EAGLE-3 head's own map; without an EAGLE head's it multiplies the whole vocabulary.
        if (tokens := Path(draft) / TOKEN_MAP).is_file():
            arguments += ["--speculative-token-map", str(tokens)]
    return [*arguments, "--speculative-num-steps", str(how.num_steps), "--speculative-eagle-topk", str(how.top_k)]


def _parallel(how: ParallelSection, rank: int) -> list[str]:
    sizes = {"--tp-size": how.tensor, "--pp-size": how.pipeline, "--dp-size": how.data}
    arguments = _given({flag: size for flag, size in sizes.items() if size > 1})
    if how.address is not None:
        arguments += ["--nnodes", str(how.nodes), "--node-rank", str(rank), "--dist-init-addr", how.address]
    return arguments


def interpreter(section: SGLangSection) -> Path:
    """The one that should have SGLang. SetupError when it is not there."""
    if section.python is not None:
        if not section.python.is_file():
            raise SetupError(f"python: there is no {section.python}")
        return section.python
    return sglang_env.python() if section.device == "cpu" else Path(sys.executable)


def _given(options: Mapping[str, object]) -> list[str]:
    """Flags with their values, those without one left out."""
    return [part for flag, value in options.items() if value is not None for part in (flag, str(value))]
