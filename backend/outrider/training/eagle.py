"""Training of EAGLE and EAGLE-3 heads: parameters that start from the target's last layer, losses, unrolled steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from outrider.engine.checkpoint import ModelConfig, Weights
from outrider.engine.drafters.eagle_checkpoint import HeadCheckpoint, read_head, write_head
from outrider.engine.drafters.eagle_net import HeadConfig, Kind, build, config_for
from outrider.engine.linear import Linear
from outrider.errors import ModelError
from outrider.training.features import Batch, Window
from outrider.training.recipes import DEPTH, Depth, Output, Scores, copy_parameters
from outrider.training.regression import fit_next_state
from outrider.training.unroll import UnrolledAttention

#: Weight of the token loss beside that of the states, and of each later unrolled step against the one before.
TOKEN_WEIGHT = 0.1
STEP_DECAY = 0.8
#: Draft steps that training unrolls, and the share of its time after which it always does. Before, it does so in one
#: batch of so many: what is drafted from true states must be right first, and one step is three times as fast.
UNROLLED, UNROLLED_FROM, UNROLLED_EVERY = 3, 0.5, 3
#: Uniform noise of this size is added to the target's states, which drafts only guess.
NOISE = 0.1
#: Of what the target's last layer adds, the part that an EAGLE head's layer adds at first.
LAYER_SHARE = 0.1
_QKV = ("q_proj", "k_proj", "v_proj")


class EagleRecipe:
    """After EAGLE (arXiv 2401.15077): smooth L1 of the next state and cross-entropy of its token; and EAGLE-3
    (arXiv 2503.01840): cross-entropy only, three of the target's layers, a draft vocabulary with its own matrix."""

    def __init__(
        self, kind: Kind, target: ModelConfig, weights: Weights, output: Output, residual_rms: float
    ) -> None:
        self._output = output
        self._embedding = output.embedding
        self._config = config_for(target, kind, len(output.token_ids))
        self._is_begun = False
        self._generator = torch.Generator(output.rows.device)
        start = initial(self._config, target, weights, output, residual_rms)
        self._tensors = {name: tensor.to(output.rows.device).requires_grad_() for name, tensor in start.items()}

    def begin_with(self, folder: Path, target: ModelConfig) -> None:
        """An EAGLE head's parameters know nothing of the draft vocabulary, an EAGLE-3 head's last matrix does."""
        stored = read_head(folder, target)
        ids = self._output.token_ids.cpu()
        if "lm_head.weight" in self._tensors and (stored.token_ids is None or not torch.equal(stored.token_ids, ids)):
            raise ModelError(f"{folder} drafts other tokens than these texts ask for")
        copy_parameters(folder, stored.tensors, self._tensors)
        self._is_begun = True

    def prepare(self, windows: Iterable[Window]) -> None:
        """EAGLE's `fc` alone guesses the next state as well as a linear map can; the layer corrects it, at first a
        little. EAGLE-3 has no such path around its layer."""
        if self._is_begun or self._config.kind != "eagle":
            return
        weight, bias = fit_next_state(windows, self._embedding)
        with torch.no_grad():
            self._tensors["fc.weight"].copy_(weight)
            self._tensors["fc.bias"].copy_(bias)
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                self._tensors[f"layers.0.{name}.weight"].mul_(LAYER_SHARE)

    @property
    def columns(self) -> tuple[int, ...]:
        """See `Recipe`."""
        return (3,) if self._config.kind == "eagle" else (0, 1, 2, 3)

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """See `Recipe`."""
        return self._tensors

    def loss(self, batch: Batch, seed: int, done: float) -> torch.Tensor:
        """Of what follows an answer's tokens: what users write is not drafted."""
        count = UNROLLED if done >= UNROLLED_FROM or seed % UNROLLED_EVERY == 0 else 1
        self._generator.manual_seed(seed)
        goal = batch.states[:, :, -1].roll(-1, dims=1)
        wanted = batch.answer.roll(-1, dims=1)
        law, size = self._laws(goal[wanted]), goal[wanted].square().mean().sqrt()
        total = torch.zeros((), device=goal.device)
        for step, (states, logits, keep) in enumerate(self._steps(batch, count, wanted, is_noisy=True)):
            known = keep[wanted]
            part = -(law[known] * logits.log_softmax(dim=-1)).sum(dim=-1).mean()
            if self._config.kind == "eagle":
                # In units of their usual size, which differs from model to model.
                part = TOKEN_WEIGHT * part + F.smooth_l1_loss(states / size, goal[keep] / size)
            total = total + STEP_DECAY**step * part
        return total / sum(STEP_DECAY**step for step in range(count))

    @torch.no_grad()
    def _laws(self, goal: torch.Tensor) -> torch.Tensor:
        return (goal @ self._output.rows.T).softmax(dim=-1)

    def depths(self, batch: Batch) -> list[Depth]:
        """See `Recipe`."""
        wanted = batch.answer.roll(-2, dims=1)
        teacher = self._output.teacher(batch.states[:, :, -1].roll(-1, dims=1)[wanted])
        return [
            Depth(logits, *(part[keep[wanted]] for part in teacher))
            for _, logits, keep in self._steps(batch, DEPTH, wanted, is_noisy=False)
        ]

    def _steps(
        self, batch: Batch, count: int, wanted: torch.Tensor, *, is_noisy: bool
    ) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Of each step the states and logits of the rows in a mask [B, n]: those `wanted` with a known next state."""
        num_rows, size = batch.token_ids.shape
        net = build(self._config, self._tensors, _linear, self._norm)
        own = self._tensors.get("lm_head.weight", self._output.rows)
        attend = UnrolledAttention(self._config.model, batch)
        features = batch.states[:, :, : len(self._config.points)].flatten(2)
        if is_noisy and self._config.kind == "eagle":
            noise = torch.rand(features.shape, generator=self._generator, device=features.device)
            features = features + (2 * noise - 1) * NOISE
        tokens = batch.token_ids.roll(-1, dims=1)
        embedded = F.embedding(tokens, self._embedding).flatten(0, 1)
        states = net.start(features.flatten(0, 1))
        place = torch.arange(size, device=tokens.device)
        steps = []
        for step in range(count):
            # Row t pairs the state at t with the token at t + 1, and guesses the state at t + 1.
            states = net.step(embedded, states, attend)
            keep = wanted & batch.mask.roll(-1, dims=1) & (place < size - 1) & (place >= step)
            kept = states.view(num_rows, size, -1)[keep]
            steps.append((kept, net.finish(kept) @ own.T, keep))
            states = states.view(num_rows, size, -1).roll(1, dims=1).flatten(0, 1)
        return steps

    def _norm(self, weight: torch.Tensor) -> Any:
        eps = self._config.model.rms_norm_eps
        return lambda x: F.rms_norm(x, (weight.numel(),), weight, eps)

    def write(self, folder: Path, note: Mapping[str, Any], scores: Scores) -> None:
        """See `Recipe`."""
        tensors = {name: tensor.detach().cpu() for name, tensor in self._tensors.items()}
        write_head(folder, HeadCheckpoint(self._config, tensors, self._output.token_ids.cpu(), scores.ranks), note)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    return Linear(lambda x: F.linear(x, weight, bias), weight.nbytes)


def initial(
    config: HeadConfig, target: ModelConfig, weights: Weights, output: Output, residual_rms: float
) -> dict[str, torch.Tensor]:
    """The target's last layer, applied once more to its states, so that a head starts near what it is to guess.

    What `EagleRecipe.prepare` fits takes the place of `fc`. An EAGLE head's states are those after the last norm, of
    another scale than what the layer knows; `residual_rms`, the usual size of what the layer adds to, converts them.
    EAGLE-3's start from the high states, which have it.
    """
    hidden = target.hidden_size
    last = f"model.layers.{target.num_layers - 1}."
    last_norm = weights.take("model.norm.weight", hidden)
    in_norm = weights.take(f"{last}input_layernorm.weight", hidden)
    is_three = config.kind == "eagle3"
    generator = torch.Generator().manual_seed(0)
    # A norm's weight may be tiny, and what is divided by it then counts for nothing.
    inverse = last_norm / (last_norm.square() + 1e-2)
    tensors = {
        "fc.bias": torch.zeros(hidden),
        "lm_head.weight": output.rows.cpu().clone(),
        "norm.weight": last_norm,
        "hidden_norm.weight": in_norm,
        "input_layernorm.weight": torch.ones(hidden),
    }
    scales: dict[str, torch.Tensor] = {
        "o_proj": (last_norm / residual_rms).unsqueeze(1),
        "down_proj": (last_norm / residual_rms).unsqueeze(1),
        "weight": inverse * last_norm.square().mean().sqrt(),
        **dict.fromkeys(_QKV, in_norm * inverse),
    }
    found: dict[str, torch.Tensor] = {}
    for name, shape in config.shapes.items():
        inner = name.removeprefix("midlayer.").removeprefix("layers.0.")
        part = inner.split(".")[1]  # "weight" for the norm after attention
        if inner in tensors:
            found[name] = tensors[inner].float().contiguous()
            continue
        if inner == "fc.weight":
            own = torch.eye(hidden)
        else:
            rest = (hidden,) if part in _QKV else shape[1:]
            own = weights.take(last + inner, shape[0], *rest)
            own = own if is_three else own * scales.get(part, torch.ones(()))
        # Of an embedding, or of lower layers, and the state side by side only the state counts at first.
        noise = (0.02 if is_three else 0.1) * torch.randn(shape, generator=generator)
        if noise.shape != own.shape:
            noise[:, -hidden:] = own
            own = noise
        found[name] = own.float().contiguous()
    return found
