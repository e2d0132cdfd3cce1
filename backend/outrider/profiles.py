"""Lane profiles: what the configuration says of each lane, as frozen sections with visible defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from outrider.core import MAX_K

DEFAULT_MODEL = "smollm2-135m-instruct"
#: Beside an EAGLE head's weights: the tokens that it drafts, in the form of SGLang's `--speculative-token-map`.
TOKEN_MAP = "hot_tokens.pt"


class Section(BaseModel):
    """Base of all sections: unknown keys stop the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


LaneName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


class LaneSection(Section):
    """One lane: an embedded engine that the gateway launches."""

    name: LaneName = "embedded"
    """In answers, metrics and logs."""
    kind: Literal["embedded"] = "embedded"
    """May be left out."""
    model: str = DEFAULT_MODEL
    """Name of a pulled model, or the path of a local Hugging Face folder."""
    draft_model: str | None = None
    """A smaller model with the same tokenizer, named like `model`; None means that `draft_model` is not offered."""
    layer_skip: Path | None = None
    """Layer set of the drafter `layer_skip`; None takes the one that `outrider profile` found, else a default set."""
    served_model_name: str | None = None
    """Name in `/v1/models`; None takes the model's own."""
    max_running: Annotated[int, Field(ge=1, le=256)] = 16
    """Requests that are computed at one time; others wait in the engine."""
    max_total_tokens: Annotated[int, Field(ge=256)] = 32768
    """Size of the key/value cache, in tokens over all running requests."""
    context_length: Annotated[int, Field(ge=16)] | None = None
    """None takes the model's own limit."""
    num_threads: Annotated[int, Field(ge=1)] | None = None
    """Threads of the tensor library; None leaves its own choice."""
    ready_timeout_s: Annotated[float, Field(gt=0)] = 180.0
    """From its start; a server that is not ready by then is replaced."""


class SpeculationSection(Section):
    """How a SGLang server speculates; fixed for its life."""

    drafter: Literal["off", "ngram", "eagle2", "eagle3", "draft_model"] = "off"
    """What it is launched with; `off` cannot speculate."""
    k: Annotated[int, Field(ge=1, le=MAX_K)] | None = None
    """Draft tokens in a row: the depth of a tree, or the length of a chain. None takes 4."""
    top_k: Annotated[int, Field(ge=1, le=16)] = 1
    """Branches of a tree; 1 is a chain."""
    draft_tokens: Annotated[int, Field(ge=2, le=64)] | None = None
    """Tokens verified at once, the last committed one included; None takes k + 1, as a chain must."""
    draft: str | None = None
    """Checkpoint of the head or the draft model: a path or a Hugging Face name."""
    draft_context: Annotated[int, Field(ge=1)] | None = None
    """Tokens of context that `draft` was trained for: longer prompts are not speculated with it, where the lane can
    leave that out or another lane is there. None: any."""

    @model_validator(mode="after")
    def _agree(self) -> SpeculationSection:
        if self.drafter == "off" and self.model_fields_set - {"drafter"}:
            raise ValueError("the drafter is off, so nothing else may be set")
        if (self.draft is not None) != (self.drafter in ("eagle2", "eagle3", "draft_model")):
            raise ValueError("draft is needed by eagle2, eagle3 and draft_model, and by nothing else")
        if self.draft_context is not None and self.draft is None:
            raise ValueError("draft_context is that of draft, which is missing")
        if self.top_k == 1 and self.draft_tokens not in (None, self.num_steps + 1):
            raise ValueError("draft_tokens of a chain (top_k 1) is k + 1")
        return self

    @property
    def num_steps(self) -> int:
        """k, or its default; 0 when off."""
        return 0 if self.drafter == "off" else self.k or 4

    @property
    def num_verified(self) -> int:
        """Rows of a request in a verifying pass."""
        return self.draft_tokens or self.num_steps + 1


class ParallelSection(Section):
    """How many GPUs and machines one SGLang server spans."""

    tensor: Annotated[int, Field(ge=1)] = 1
    """GPUs that share each layer."""
    pipeline: Annotated[int, Field(ge=1)] = 1
    """Groups of them that share the layers."""
    data: Annotated[int, Field(ge=1)] = 1
    """Copies of all that, each on GPUs of its own unless the flags say `--enable-dp-attention`."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Machines; the gateway starts rank 0, `outrider lanes plan` prints what the others have to run."""
    address: str | None = None
    """`HOST:PORT` of rank 0, at which the others find it."""

    @model_validator(mode="after")
    def _agree(self) -> ParallelSection:
        if (self.address is not None) != (self.nodes > 1):
            raise ValueError("address is needed by more than one node, and by nothing else")
        return self


class SGLangSection(Section):
    """One lane: a SGLang server that the gateway launches."""

    name: LaneName
    """In answers, metrics and logs."""
    kind: Literal["sglang"]
    """A server that the gateway launches."""
    model: str = DEFAULT_MODEL
    """Name of a pulled model, a path, or a Hugging Face name."""
    served_model_name: str | None = None
    """Name in `/v1/models`; None takes the last part of `model`. Lanes of one name form a group."""
    speculation: SpeculationSection = SpeculationSection()
    """None by default."""
    device: Literal["cuda", "cpu"] = "cuda"
    """A CPU is for development and tests."""
    gpus: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """What CUDA_VISIBLE_DEVICES shows to the server; empty leaves it as it is."""
    parallel: ParallelSection = ParallelSection()
    """One GPU by default."""
    attention_backend: str | None = None
    """None takes flashinfer on CUDA, and the backend of our plugin on a CPU."""
    dtype: str | None = None
    """None takes float32 on a CPU, and the model's own on CUDA."""
    max_running: Annotated[int, Field(ge=1)] = 48
    """Always given to SGLang, which would cap it silently when it speculates."""
    max_total_tokens: Annotated[int, Field(ge=256)] | None = None
    """Size of the key/value cache; None leaves it to SGLang."""
    context_length: Annotated[int, Field(ge=16)] | None = None
    """None takes the model's own limit."""
    radix_cache: bool | None = None
    """Reuse of prefixes; None turns it off for ngram, where SGLang was seen to mix up shared prefixes."""
    flags: tuple[str, ...] = ()
    """More arguments for the server, as on its command line."""
    python: Path | None = None
    """Interpreter with SGLang; None takes the gateway's own on CUDA, and that of `outrider lanes env` on a CPU."""
    ready_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    """From its start; a server that is not ready by then is replaced."""

    @field_validator("flags")
    @classmethod
    def _not_ours(cls, flags: tuple[str, ...]) -> tuple[str, ...]:
        for flag in flags:
            name = flag.partition("=")[0]
            if name.startswith("--") and any(own.startswith(name) for own in _OWN_FLAGS):
                raise ValueError(f"{name} is set by the lane, from its other keys")
        return flags

    @model_validator(mode="after")
    def _agree(self) -> SGLangSection:
        how = self.parallel
        spanned = how.tensor * how.pipeline * how.data
        if self.device == "cpu" and (self.gpus or spanned * how.nodes > 1):
            raise ValueError("a lane on a CPU has no gpus and spans one process")
        if "--enable-dp-attention" in self.flags:
            spanned //= how.data  # the copies are of the attention alone, on the same GPUs
        if self.gpus and len(self.gpus) * how.nodes < spanned:
            raise ValueError(f"gpus names {len(self.gpus)}, but tensor x pipeline x data spans {spanned}")
        return self


#: Arguments of SGLang that a lane sets, in all their spellings; SGLang takes what a name begins with for the name.
_OWN_FLAGS = frozenset({
    "--model-path", "--served-model-name", "--host", "--port", "--device", "--dtype", "--attention-backend",
    "--sampling-defaults", "--max-running-requests", "--max-total-tokens", "--context-length", "--enable-metrics",
    "--disable-radix-cache", "--enable-cache-report", "--tp-size", "--tensor-parallel-size", "--pp-size",
    "--pipeline-parallel-size", "--dp-size", "--data-parallel-size", "--nnodes", "--node-rank", "--dist-init-addr",
    "--nccl-init-addr", "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps",
    "--speculative-eagle-topk", "--speculative-num-draft-tokens", "--speculative-ngram-max-bfs-breadth",
})  # fmt: skip


def _with_port(url: str) -> str:
    if urlsplit(url).port == 0:  # ValueError for what is none
        raise ValueError("Port 0 is no server's")
    return url


#: Without query and fragment: routes of the server come behind it.
LaneUrl = Annotated[str, Field(pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$"), AfterValidator(_with_port)]


class UrlSection(Section):
    """Lanes that somebody else runs: one for every URL or, with `resolve`, for every address of a name."""

    name: LaneName
    """In answers, metrics and logs; with the address behind it where there are several."""
    kind: Literal["url"]
    """Servers that somebody else runs."""
    urls: Annotated[tuple[LaneUrl, ...], Field(min_length=1)]
    """Each is a lane of its own."""
    resolve: bool = False
    """The host name of each URL stands for many servers; it is resolved again and again."""
    refresh_s: Annotated[float, Field(gt=0)] = 10.0
    """Seconds between two resolutions."""
    speculation: SpeculationSection | None = None
    """How the servers are said to speculate; a server that says otherwise is reported, and its word counts."""

    @model_validator(mode="after")
    def _agree(self) -> UrlSection:
        if self.resolve and any(url.startswith("https:") for url in self.urls):
            raise ValueError("resolve needs http URLs: a certificate is for a name and not for an address")
        return self


def _kind(value: Any) -> str:
    """A lane without a kind is an embedded one."""
    kind = value.get("kind", "embedded") if isinstance(value, dict) else getattr(value, "kind", "embedded")
    return kind if isinstance(kind, str) else "embedded"


AnyLane = Annotated[
    Annotated[LaneSection, Tag("embedded")]
    | Annotated[SGLangSection, Tag("sglang")]
    | Annotated[UrlSection, Tag("url")],
    Discriminator(
        _kind,
        custom_error_type="kind",
        custom_error_message="Input should be 'embedded', 'sglang' or 'url'",
    ),
]
