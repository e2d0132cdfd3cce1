"""The k of each request: a cap on its accepted drafts, and as many drafting steps as the batch's largest k wants."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch

from outrider.sglang_plugin.hooks import Feature, Hook
from outrider.sglang_plugin.lane import is_cpu, limits, without_speculation
from outrider.sglang_plugin.lane_plan import caps

#: On a GPU every number of steps costs a set of CUDA graphs, so not all are kept.
_GPU_STEPS = (0, 1, 2, 3, 5, 8, 12)

_EAGLE_WORKER = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
_CONTROLLER = "sglang.srt.speculative.adaptive_runtime_state.AdaptiveController"
_DRAFT_MODEL_WORKER = "sglang.srt.speculative.standalone_worker_v2.StandaloneWorkerV2"


class WantedSteps:
    """The policy that SGLang's adaptive controller asks: the fewest steps that give every request its k."""

    def __init__(self, candidate_steps: list[int]) -> None:
        self.candidate_steps = sorted(candidate_steps)
        self.wanted = self.candidate_steps[-1]
        self._cuda_graph_bs: list[int] | None = None

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Called by SGLang: the fewest steps held ready that reach what is wanted."""
        return self.candidate_steps[bisect_left(self.candidate_steps, self.wanted)]

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> None:
        """Nothing is learnt here: the gateway's policy has decided."""

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Called by SGLang: batch sizes for which graphs were captured."""
        self._cuda_graph_bs = cuda_graph_bs

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Called by SGLang: the same for every number of steps."""
        return self._cuda_graph_bs


def candidate_steps(num_steps: int, *, on_cpu: bool) -> list[int]:
    """Numbers of steps to hold ready, from none to as many as the lane was launched with."""
    if on_cpu:
        return list(range(num_steps + 1))
    return [steps for steps in _GPU_STEPS if steps < num_steps] + [num_steps]


def cut(accept_lens: torch.Tensor, accept_index: torch.Tensor, most: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Cap accepted drafts: lengths [B] count the bonus too, indices [B, depth + 1] hold root and drafts, -1 after.

    The token at the last node that is kept is the target's own choice already, so the law does not change.
    """
    most_kept = torch.tensor(most, dtype=accept_lens.dtype).to(accept_lens.device, non_blocking=True)
    columns = torch.arange(accept_index.shape[1], device=accept_index.device)
    kept = columns[None, :] <= most_kept[:, None]
    return torch.minimum(accept_lens, most_kept + 1), accept_index.masked_fill(~kept, -1)


def _cap(result: Any, verify_input: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """AFTER `eagle_sample`, which all drafters verify with."""
    predict, accept_lens, accept_index = result
    if batch.forward_mode.is_idle():
        return result
    return predict, *cut(accept_lens, accept_index, caps(batch.reqs, limits().max_k))


def _report_caps(result: Any, worker: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER a step; prompts are not verified. SGLang's own fields for caps carry them to the answer."""
    if batch.forward_mode.is_target_verify() or batch.forward_mode.is_decode():
        result.cap_lens = torch.tensor(caps(batch.reqs, limits().max_k), dtype=torch.int32, device=batch.device)


def _control_steps(result: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER a worker is made: give it the controller that switches steps, with our policy."""
    if limits().max_k == 0 or _no_steps() is not None or worker.draft_worker is None:
        return
    from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController

    policy = WantedSteps(candidate_steps(worker.speculative_num_steps, on_cpu=is_cpu()))
    worker.adaptive_controller = AdaptiveController(worker, policy)


def _want_steps(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE a step."""
    policy = getattr(worker.adaptive_controller, "params", None)
    if isinstance(policy, WantedSteps) and batch.reqs:
        policy.wanted = max(caps(batch.reqs, limits().max_k))


def _no_steps() -> str | None:
    from sglang.srt.runtime_context import get_server_args, get_spec
    from sglang.srt.speculative.adaptive_spec_params import adaptive_unsupported_reason

    lane = limits()
    if lane.drafter not in ("eagle2", "eagle3", "draft_model"):
        return "the lane drafts without steps"
    if get_spec().speculative_eagle_topk != 1:
        return "SGLang switches steps for top-k 1 only"
    args = get_server_args()
    # These SGLang checks elsewhere, by a flag that is not set here: what they do is sized by the steps at launch.
    if args.pp_size > 1 or args.enable_hisparse:
        return "with pipeline parallelism or HiSparse the number of steps must stay"
    if lane.drafter != "draft_model":
        reason: str | None = adaptive_unsupported_reason(args)
        return reason
    # SGLang's own check would refuse a draft model by name.
    has_others = args.enable_two_batch_overlap or args.enable_pdmux or args.enable_dp_attention
    return "overlapped or multiplexed batches lose what a switch of steps swaps" if has_others else None


def _no_reporting() -> str | None:
    from sglang.srt.runtime_context import get_server_args

    has_own = get_server_args().enable_multi_layer_eagle
    return "the worker of several EAGLE layers reports no caps" if has_own else without_speculation()


CAPS = Feature(
    ("k",),
    (Hook("sglang.srt.speculative.eagle_utils.eagle_sample", "after", _cap, ("verify_input", "batch")),),
    unused=without_speculation,
)
REPORTING = Feature(
    ("reporting",),
    (
        Hook(f"{_EAGLE_WORKER}.verify", "after", _report_caps, ("batch",)),
        Hook(
            "sglang.srt.speculative.ngram_worker.NGRAMWorker.forward_batch_generation",
            "after",
            _report_caps,
            ("batch",),
        ),
    ),
    unused=_no_reporting,
)
STEPS = Feature(
    ("steps",),
    (
        Hook(f"{_EAGLE_WORKER}.__init__", "after", _control_steps, ("server_args",)),
        Hook(f"{_DRAFT_MODEL_WORKER}.__init__", "after", _control_steps, ("server_args",)),
        Hook(f"{_EAGLE_WORKER}.forward_batch_generation", "before", _want_steps, ("batch",)),
        Hook(_CONTROLLER, "exists", None, ("worker", "policy")),
    ),
    unused=_no_steps,
)
