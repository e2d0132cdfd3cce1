"""What the engine's server says of itself, in the words of SGLang's `/v1/models`, `/server_info` and `/v1/loads`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.core import MAX_K, SURFACES
from outrider.engine.drafters.sources import DEFAULT_OPTIONS, DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.loop import EngineLoad
from outrider.version import __version__

#: Parts of the sampling law that gateways ask about; all that the engine takes, it honours, drafts or not.
_EXACT_SURFACES = tuple(sorted(SURFACES - {"logit_processor", "structural_tag", "lora", "images"}))


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How an engine is served."""

    model: Path
    served_model_name: str
    host: str = "127.0.0.1"
    port: int = 0
    limits: EngineLimits = field(default_factory=EngineLimits)
    drafting: DraftOptions = DEFAULT_OPTIONS
    cost_table: Path | None = None
    """Where `outrider profile` keeps the cost table of this model on this machine; it need not be there."""
    exits_with_stdin: bool = False
    """Stop when standard input ends: a parent that holds the other end and dies leaves no orphan."""


def models(engine: Engine, options: ServerOptions) -> dict[str, Any]:
    """The body of `/v1/models`."""
    model = {
        "id": options.served_model_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "outrider",
        "root": options.served_model_name,
        "max_model_len": engine.context_length,
    }
    return {"object": "list", "data": [model]}


def server_info(engine: Engine, options: ServerOptions) -> dict[str, Any]:
    """SGLang's names where it has them; what it lacks is under `outrider`."""
    limits = options.limits
    return {
        "model_path": str(options.model),
        "served_model_name": options.served_model_name,
        "context_length": engine.context_length,
        "max_running_requests": limits.max_running,
        "max_total_num_tokens": limits.max_total_tokens,
        "max_req_input_len": engine.context_length - 1,
        "speculative_algorithm": None,
        "version": f"outrider-{__version__}",
        "outrider": {
            "drafters": list(engine.drafters.makers),
            "max_k": MAX_K,
            # Lossy acceptance changes laws, so that such an engine honours nothing of a request exactly.
            "exact_surfaces": () if options.drafting.is_lossy else _EXACT_SURFACES,
            "is_lossy": options.drafting.is_lossy,
            "drafter_info": engine.drafters.info,
            "cost": None if engine.cost is None else engine.cost.model_dump(),
            "memory": engine.memory,
        },
        "internal_states": [{"effective_max_running_requests_per_dp": limits.max_running}],
    }


def loads(load: EngineLoad, limits: EngineLimits) -> dict[str, Any]:
    """The body of `/v1/loads`."""
    now = time.time()
    entry = {
        "timestamp": now,
        "dp_rank": 0,
        "num_running_reqs": load.num_running,
        "num_waiting_reqs": load.num_waiting,
        "num_used_tokens": load.num_used_tokens,
        "max_total_num_tokens": limits.max_total_tokens,
        "max_running_requests": limits.max_running,
        "token_usage": round(load.num_used_tokens / limits.max_total_tokens, 4),
        "gen_throughput": round(load.tokens_per_s, 2),
    }
    return {"timestamp": now, "version": f"outrider-{__version__}", "loads": [entry]}
