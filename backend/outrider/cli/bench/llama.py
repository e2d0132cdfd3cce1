"""The arms of llama.cpp through llama-cpp-python, on the 4-bit file that our weights were made from; optional."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outrider.cli.bench.samples import Case, Sample, Setting

ARMS = ("llama", "llama_lookup")
#: What the library advises for processors; 10 is its advice for graphics cards.
LOOKUP_TOKENS = 2
_CONTEXT = 4096
#: With a drafter, the library writes logits of a whole batch of prompt behind those it has, whether or not they fit.
_MARGIN = 512


def is_installed() -> bool:
    """Whether llama-cpp-python can be imported; it is not loaded for that."""
    return find_spec("llama_cpp") is not None


class LlamaCppArm:
    """Greedy decoding of the same prompt tokens, with as many threads as our engine has."""

    def __init__(self, file: Path, num_threads: int) -> None:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        options: dict[str, Any] = {
            "n_ctx": _CONTEXT, "n_threads": num_threads, "n_threads_batch": num_threads, "verbose": False,
        }  # fmt: skip
        lookup = LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP_TOKENS)
        self._models: dict[str, Any] = {
            "llama": Llama(str(file), **options),
            "llama_lookup": Llama(str(file), draft_model=lookup, **options),
        }

    def run(self, case: Case, prompt_ids: tuple[int, ...], setting: Setting) -> Sample | None:
        """None when the prompt does not fit its context."""
        if len(prompt_ids) + case.max_tokens > _CONTEXT - _MARGIN:
            return None
        model = self._models[setting.arm]
        token_ids: list[int] = []
        times: list[float] = []
        start_s = time.perf_counter()
        for token in model.generate(prompt_ids, temp=0.0, repeat_penalty=1.0):
            token_ids.append(token)
            times.append(time.perf_counter() - start_s)
            if token == model.token_eos() or len(token_ids) == case.max_tokens:
                break
        return Sample(setting, case, 0, tuple(token_ids), tuple(range(1, len(times) + 1)), tuple(times))
