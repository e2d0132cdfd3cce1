"""The plugin's entry point: called by SGLang in each of its processes, before arguments are parsed."""

from __future__ import annotations

from typing import Any

from outrider.sglang_plugin.hooks import Feature, Hook

ATTENTION_BACKEND = "torch_tree"


def load() -> None:
    """Put every feature in, once. What cannot be put in is logged and reported; the lane runs without it."""
    from outrider.sglang_plugin import linears, sampling
    from outrider.sglang_plugin.lane import INSTALLED, PLANS, REPORT, is_cpu
    from outrider.sglang_plugin.steps import CAPS, REPORTING, STEPS

    if INSTALLED.features:
        return
    chosen = [ATTENTION, *sampling.cpu_features(), *linears.features()] if is_cpu() else sampling.gpu_features()
    INSTALLED.install([REPORT, PLANS, CAPS, REPORTING, STEPS, *chosen])


def _register_attention() -> None:
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    choices.add_attention_backend_choices([ATTENTION_BACKEND])
    choices.add_draft_attention_backend_choices([ATTENTION_BACKEND])
    register_attention_backend(ATTENTION_BACKEND)(_attention)


def _attention(runner: Any) -> Any:
    from outrider.sglang_plugin.attention import TreeAttention

    return TreeAttention(runner)


def _draft_attention(
    factory: Any, backend_name: str, backend_map: dict[str, Any], error_template: str, stamps_children: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """BEFORE a drafter's backend is made: ours joins the map. `stamps_children` marks the one that drafts."""
    from outrider.sglang_plugin.attention import DraftSteps, TreeAttention

    def make() -> tuple[str, Any]:
        runner = factory.draft_model_runner
        if stamps_children:
            return ATTENTION_BACKEND, DraftSteps(runner, factory.topk, factory.speculative_num_steps)
        return ATTENTION_BACKEND, TreeAttention(runner)

    known = {**backend_map, ATTENTION_BACKEND: make}
    return (factory, backend_name, known, error_template), {"stamps_children": stamps_children}


ATTENTION = Feature(
    ("attention",),
    (
        Hook("sglang.srt.arg_groups.choices.add_attention_backend_choices", "exists"),
        Hook("sglang.srt.arg_groups.choices.add_draft_attention_backend_choices", "exists"),
        Hook("sglang.srt.layers.attention.attention_registry.register_attention_backend", "exists", None, ("name",)),
        Hook(
            "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend",
            "before",
            _draft_attention,
            ("backend_name", "backend_map", "error_template", "stamps_children"),
        ),
    ),
    setup=_register_attention,
)
