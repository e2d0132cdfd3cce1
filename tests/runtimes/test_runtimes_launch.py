from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outrider.errors import SetupError
from outrider.profiles import TOKEN_MAP, LaneSection, SGLangSection
from outrider.runtimes.launch import engine_launch, local_launch, server_arguments, sglang_launch


def profile(**fields):
    return SGLangSection(**{"name": "a", "kind": "sglang", "model": "org/Model", **fields})


def arguments(**fields):
    return " ".join(server_arguments(profile(**fields), 1234, lambda model: f"<{model}>"))


@pytest.mark.parametrize("name", [None, "served"])
def test_the_engines_command_line(name):
    """Every setting of the section is passed; what is None is left to the engine."""
    section = LaneSection(model="/m", max_running=3, max_total_tokens=512, num_threads=2, served_model_name=name)
    launch = engine_launch(section, 1234)
    assert launch.argv[:6] == (sys.executable, "-m", "outrider", "engine", "--model", "/m")
    assert launch.environment is None
    text = " ".join(launch.argv)
    for part in ("--host 127.0.0.1", "--port 1234", "--max-running 3", "--max-total-tokens 512", "--num-threads 2"):
        assert part in text
    assert "--exit-with-stdin" in text and "--context-length" not in text
    assert "--draft-model" not in text and "--layer-skip" not in text
    assert ("--served-model-name served" in text) is (name is not None)


def test_what_drafters_need_is_passed_on():
    """The draft model and the layer set of a lane reach its engine."""
    section = LaneSection(draft_model="/small", layer_skip=Path("/set.json"))
    assert "--draft-model /small --layer-skip /set.json" in " ".join(engine_launch(section, 1).argv)


def test_a_plain_lane_on_cuda():
    """FlashInfer, metrics, and what SGLang would otherwise choose by itself: limit and defaults of sampling."""
    assert arguments() == (
        "--model-path <org/Model> --served-model-name Model --host 127.0.0.1 --port 1234 --device cuda "
        "--attention-backend flashinfer --sampling-defaults openai --max-running-requests 48 --enable-metrics "
        "--enable-cache-report"
    )


def test_a_lane_on_a_cpu():
    """Single precision, our attention backend, no spinning and no graphs."""
    text = arguments(device="cpu", max_total_tokens=4096)
    assert "--attention-backend torch_tree" in text and "--dtype float32 --max-total-tokens 4096" in text
    assert "--sleep-on-idle --disable-cuda-graph --skip-server-warmup" in text


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        (
            {"drafter": "ngram", "k": 7, "top_k": 4},
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8 --speculative-ngram-max-bfs-breadth 4",
        ),
        (
            {"drafter": "draft_model", "k": 3, "draft": "d"},
            "--speculative-algorithm STANDALONE --speculative-num-draft-tokens 4 "
            "--speculative-draft-model-path <d> --speculative-num-steps 3 --speculative-eagle-topk 1",
        ),
        (
            {"drafter": "eagle2", "k": 3, "top_k": 4, "draft_tokens": 16, "draft": "d"},
            "--speculative-algorithm EAGLE --speculative-num-draft-tokens 16 "
            "--speculative-draft-model-path <d> --speculative-num-steps 3 --speculative-eagle-topk 4",
        ),
        (
            {"drafter": "eagle3", "draft": "d"},
            "--speculative-algorithm EAGLE3 --speculative-num-draft-tokens 5 "
            "--speculative-draft-model-path <d> --speculative-num-steps 4 --speculative-eagle-topk 1",
        ),
    ],
)
def test_each_drafter_has_its_flags(speculation, expected):
    """K counts drafts; SGLang counts the token before them too."""
    assert expected in arguments(speculation=speculation)


def test_a_head_that_drafts_some_tokens_only_says_which(tmp_path):
    """Where its folder lists them."""
    section = profile(speculation={"drafter": "eagle2", "k": 3, "draft": str(tmp_path)})
    assert "--speculative-token-map" not in server_arguments(section, 1, str)
    (tmp_path / TOKEN_MAP).touch()
    given = server_arguments(section, 1, str)
    assert given[given.index("--speculative-token-map") + 1] == str(tmp_path / TOKEN_MAP)


def test_n_grams_and_shared_prefixes_do_not_mix_unless_asked():
    """SGLang was seen to mix up texts with both."""
    assert "--disable-radix-cache" in arguments(speculation={"drafter": "ngram"})
    assert "--disable-radix-cache" not in arguments(speculation={"drafter": "ngram"}, radix_cache=True)
    assert "--disable-radix-cache" not in arguments()


def test_large_fleets_are_sglangs_own():
    """Parallel sizes and ranks are passed; more flags come last."""
    section = profile(parallel={"tensor": 8, "data": 2, "nodes": 2, "address": "h:5"}, flags=["--trust-remote-code"])
    text = " ".join(server_arguments(section, 1, str, rank=1))
    assert text.endswith("--tp-size 8 --dp-size 2 --nnodes 2 --node-rank 1 --dist-init-addr h:5 --trust-remote-code")


def test_gpus_and_interpreter_of_a_launch(tmp_path):
    """The guard runs the named interpreter, which sees the named GPUs and nothing else of ours is changed."""
    section = profile(gpus=[2, 3], parallel={"tensor": 2}, python=sys.executable)
    launch = sglang_launch(section, 1, str, {"HOME": "/h"})
    named = {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert launch.argv[:2] == (sys.executable, "-I")
    assert launch.argv[4:7] == (sys.executable, "-m", "sglang.launch_server")
    assert launch.environment == {"HOME": "/h", **named}
    assert launch.added == named
    with pytest.raises(SetupError, match=r"python: there is no .*none"):
        sglang_launch(profile(python=tmp_path / "none"), 1, str, {})


def test_a_folder_that_is_not_there_is_named_before_anything_starts(tmp_path):
    """By its key; a name that is no path may be one that SGLang fetches."""
    head = {"drafter": "eagle2", "draft": str(tmp_path / "head")}
    fine = profile(model=str(tmp_path), python=sys.executable)
    assert local_launch(fine, 1, str, {}) == sglang_launch(fine, 1, str, {})
    assert local_launch(profile(python=sys.executable), 1, str, {}).argv
    for fields, key in (({"model": str(tmp_path / "m")}, "model"), ({"speculation": head}, "speculation.draft")):
        with pytest.raises(SetupError, match=f"^{key}: there is no {tmp_path}"):
            local_launch(profile(**fields), 1, str, {})
