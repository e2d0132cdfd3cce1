"""The arms of the Hugging Face library: `generate` in fp32, its prompt look-up and its assisted generation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outrider.cli.bench.first_layers import num_first_layers
from outrider.cli.bench.ours import SEED
from outrider.cli.bench.samples import Case, Sample, Setting

#: The value of the library's own examples.
LOOKUP_TOKENS = 10
#: The library is slow, and its speed hardly depends on the length; ratios are taken over as many tokens of ours.
MAX_TOKENS, MAX_ASSISTED_TOKENS = 32, 16
ASSISTED = ("hf_assisted", "hf_early_exit")


def is_installed() -> bool:
    """Whether transformers can be imported; it is not loaded for that."""
    return find_spec("transformers") is not None


class HuggingFaceArm:
    """`generate` as most people would run the model; drafting arms with the library's own defaults.

    `draft_model`: the folder of the assistant, without which there is no such arm.
    """

    def __init__(self, folder: Path, draft_model: Path | None = None) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        quiet: Any = logging  # the library's own annotations do not fit its behaviour
        quiet.disable_progress_bar()
        quiet.set_verbosity_error()
        self._torch: Any = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._options: dict[str, dict[str, Any]] = {
            "hf": {},
            "hf_lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
            "hf_early_exit": {"assistant_early_exit": num_first_layers(self._model.config.num_hidden_layers)},
        }
        if draft_model is not None:
            assistant: Any = AutoModelForCausalLM.from_pretrained(draft_model, dtype=torch.float32)
            self._options["hf_assisted"] = {"assistant_model": assistant}

    @property
    def arms(self) -> list[str]:
        """Names of its ways to generate."""
        return list(self._options)

    def run(self, case: Case, prompt_ids: tuple[int, ...], setting: Setting) -> Sample:
        """Answer the case, timed; `setting` names one of `arms`."""
        input_ids = self._torch.tensor([prompt_ids])
        inputs = {"input_ids": input_ids, "attention_mask": self._torch.ones_like(input_ids)}
        sampling: Mapping[str, Any] = {"do_sample": False}
        if case.temperature:
            sampling = {"do_sample": True, "temperature": case.temperature}
        limit = min(MAX_ASSISTED_TOKENS if setting.arm in ASSISTED else MAX_TOKENS, case.max_tokens)
        self._torch.manual_seed(SEED)
        clock = _Clock()
        out = self._model.generate(
            **inputs, **sampling, **self._options[setting.arm], max_new_tokens=limit, streamer=clock
        )
        token_ids = tuple(out[0, len(prompt_ids) :].tolist())
        return Sample(setting, case, 0, token_ids, tuple(clock.counts), tuple(clock.times_s))


class _Clock:
    """A streamer of `generate` that notes when how many tokens have come; the first call carries the prompt."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.times_s: list[float] = []
        self._start_s: float | None = None

    def put(self, value: Any) -> None:
        now_s = time.perf_counter()
        if self._start_s is None:
            self._start_s = now_s
            return
        self.counts.append((self.counts[-1] if self.counts else 0) + value.numel())
        self.times_s.append(now_s - self._start_s)

    def end(self) -> None:
        """Part of the streamer's contract; the last token has been put by now."""
