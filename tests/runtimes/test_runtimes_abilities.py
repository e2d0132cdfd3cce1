from __future__ import annotations

import pytest

from outrider.core import MAX_K, SURFACES, DrafterAbility
from outrider.cost import MAX_DEPTH, SMALL_CPU, VERSION, CostTable
from outrider.runtimes.abilities import (
    SGLANG_ROUTES,
    Abilities,
    KRange,
    lane_ability,
    read_abilities,
)

#: What SGLang 0.5.23 said on a CPU, cut to what matters here.
PLAIN = {
    "context_length": None, "max_running_requests": 8, "device": "cpu", "attention_backend": "torch_native",
    "speculative_algorithm": None, "speculative_num_steps": None, "speculative_eagle_topk": None,
    "speculative_num_draft_tokens": None, "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0, "enable_deterministic_inference": False,
    "enable_custom_logit_processor": False, "max_req_input_len": 4090, "version": "0.5.23",
    "internal_states": [{"effective_max_running_requests_per_dp": 6}],
}  # fmt: skip
NGRAM = PLAIN | {
    "speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8, "speculative_eagle_topk": 4,
}  # fmt: skip
EAGLE = PLAIN | {
    "speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 8, "speculative_eagle_topk": 4,
    "speculative_num_steps": 3, "device": "cuda", "attention_backend": "flashinfer",
}  # fmt: skip
ALL_BUT_PROCESSOR_AND_SEED = SURFACES - {"logit_processor", "seed"}
#: What needs no care in verification.
EASY = {"ebnf", "images", "json_schema", "regex", "structural_tag", "logit_bias", "logprobs", "lora"}


def with_plugin(info, *active):
    return info | {"internal_states": [{"outrider": {"version": "1", "active": list(active), "missing": {}}}]}


def test_a_plain_server_decodes_and_honours_its_own_sampling():
    """No drafter; a seed and a logit processor only where they were switched on."""
    found = read_abilities(PLAIN)
    assert (found.drafters, found.can_be_off, found.plugin) == ({}, True, None)
    assert found.surfaces == ALL_BUT_PROCESSOR_AND_SEED
    assert (found.max_running, found.context_length, found.version) == (6, 4090, "0.5.23")
    more = read_abilities(PLAIN | {"enable_deterministic_inference": True, "enable_custom_logit_processor": True})
    assert more.surfaces == SURFACES


def test_a_stock_server_that_speculates_has_one_k_and_cannot_stop():
    """On CUDA it samples by temperature; min_p, penalties and both cuts together it does not honour exactly."""
    found = read_abilities(EAGLE)
    assert (found.drafters, found.can_be_off) == ({"eagle3": KRange(3, 3)}, False)
    assert found.surfaces == EASY | {"temperature"}
    assert read_abilities(EAGLE | {"speculative_accept_threshold_acc": 0.9}).surfaces == EASY


def test_a_stock_server_on_a_cpu_only_takes_the_argmax():
    """Of n-grams as many may be accepted as are verified beside the last token."""
    found = read_abilities(NGRAM)
    assert (found.drafters, found.surfaces) == ({"ngram": KRange(7, 7)}, EASY)


def test_the_plugin_makes_a_lane_obedient_and_exact():
    """Only what it reports as active counts."""
    found = read_abilities(with_plugin(NGRAM, "k", "sampling", "min_p", "seeds"))
    assert (found.drafters, found.can_be_off) == ({"ngram": KRange(1, 7)}, True)
    assert found.surfaces == EASY | {"temperature", "top_k_top_p", "min_p", "seed"}
    assert found.plugin == ("k", "sampling", "min_p", "seeds")
    report = {"active": ["k"], "missing": {"seeds": "x.y is not there"}, "unused": {"steps": "none"}}
    moved = read_abilities(NGRAM | {"internal_states": [{"outrider": report}]})
    assert (moved.plugin, moved.missing) == (("k",), {"seeds": "x.y is not there"})
    assert read_abilities(with_plugin(NGRAM)) == Abilities(
        {"ngram": KRange(7, 7)},
        False,
        frozenset(EASY),
        (),
        True,
        4,
        8,
        "torch_native",
        4090,
        8,
        "0.5.23",
        "cpu",
        SURFACES - {"logit_processor"},
        routes=SGLANG_ROUTES,
    )
    assert not read_abilities(with_plugin(EAGLE, "k", "steps")).counts_proposed
    assert not read_abilities(EAGLE | {"speculative_adaptive": True}).counts_proposed


def test_on_cuda_the_plugin_makes_less_exact():
    """There SGLang's kernels verify: filters are those of plain sampling by pytorch only, and seeds nobody's."""
    assert read_abilities(with_plugin(EAGLE, "k", "min_p", "seeds")).surfaces == EASY | {"temperature"}
    pytorch = with_plugin(EAGLE | {"sampling_backend": "pytorch"}, "k", "min_p")
    assert read_abilities(pytorch).surfaces == EASY | {"temperature", "top_k_top_p", "min_p"}
    assert "seed" not in read_abilities(EAGLE | {"enable_deterministic_inference": True}).surfaces


def test_a_plain_lane_honours_seeds_with_the_plugin():
    """Which on a CPU are the same noise that verification uses."""
    assert read_abilities(with_plugin(PLAIN, "seeds")).surfaces == ALL_BUT_PROCESSOR_AND_SEED | {"seed"}


def test_the_embedded_engine_says_it_in_one_object():
    """Its drafters, the largest k, and what it samples exactly."""
    own = {"drafters": ["ngram", "hybrid", "unheard-of"], "max_k": 16, "exact_surfaces": ["min_p", "unheard-of"]}
    found = read_abilities({"outrider": own, "speculative_algorithm": None})
    assert found.drafters == {"ngram": KRange(1, 16), "hybrid": KRange(1, 16)}
    drafts = {one.drafter: (one.is_sampled, one.depth) for one in lane_ability("one", found).drafters}
    assert drafts == {"ngram": (False, MAX_K), "hybrid": (True, MAX_DEPTH)}, "drawn where hot, else trees of a head"
    assert (found.can_be_off, found.surfaces) == (True, {"min_p"})
    with pytest.raises(ValueError, match="max_k"):
        read_abilities({"outrider": {}})


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (NGRAM | {"speculative_algorithm": "DFLASH"}, "DFLASH"),
        (NGRAM | {"speculative_num_draft_tokens": 64}, "k=63"),
        (NGRAM | {"speculative_num_draft_tokens": None}, "k=None"),
    ],
)
def test_speculation_that_no_plan_can_name_is_an_error(info, message):
    """The lane must not be used as if it did something else."""
    with pytest.raises(ValueError, match=message):
        read_abilities(info)


@pytest.mark.parametrize("info", [{}, {"internal_states": []}, {"internal_states": [3]}, {"internal_states": "x"}])
def test_an_empty_answer_is_a_plain_server(info):
    """Nothing in it is taken on trust."""
    assert read_abilities(info).drafters == {}


def test_decisions_get_what_the_lane_says():
    """K one by one, its own limits, and costs of the kind of machine that it is on."""
    stock = lane_ability("stock", read_abilities(NGRAM))
    assert (stock.name, stock.has_plain, stock.max_running, stock.cost) == ("stock", False, 6, SMALL_CPU)
    assert stock.drafters == (DrafterAbility("ngram", (7,), is_shared=True, min_num_rows=8, min_num_steps=1),)
    assert "temperature" not in stock.exact and "json_schema" in stock.exact
    gpu = lane_ability("gpu", read_abilities(EAGLE))
    assert gpu.cost.knee > SMALL_CPU.knee and not gpu.drafters[0].is_sampled
    assert lane_ability("twin", read_abilities(EAGLE)).drafters is gpu.drafters
    own = {"drafters": ["ngram", "draft_model"], "max_k": 3, "exact_surfaces": ["temperature"]}
    ours = lane_ability("ours", read_abilities({"outrider": own}))
    assert ours.drafters == (DrafterAbility("ngram", (1, 2, 3)), DrafterAbility("draft_model", (1, 2, 3), True))
    assert ours.has_plain and ours.exact == {"temperature"}


@pytest.mark.parametrize("garbage", [5, "ngram", {"ngram": 1}, [["ngram"]], [None], None])
def test_garbage_of_an_engine_is_no_ability(garbage):
    """Nor a fault that would end the looking after the lane."""
    found = read_abilities({"outrider": {"max_k": 4, "drafters": garbage, "exact_surfaces": garbage}})
    assert found.drafters == {} and found.surfaces == set()


def test_the_limits_of_all_ranks_count_together():
    """As the profile's limit and the load do; a rank that says nothing leaves the server's own word."""
    ranks = {"internal_states": [{"effective_max_running_requests_per_dp": 6}] * 4}
    assert read_abilities(PLAIN | ranks).max_running == 24
    assert read_abilities(PLAIN | {"internal_states": [*ranks["internal_states"], {}]}).max_running == 8


def test_what_a_launch_has_set_is_paid_in_every_round():
    """All of a tree is drafted and verified whatever k is, and of n-grams all that fit; where steps are switched, a
    round has the rows of its k, and the head's own pass in any case. An engine of ours pays for what it drafts."""
    chain = EAGLE | {"speculative_num_draft_tokens": 4, "speculative_eagle_topk": 1}
    own = {"outrider": {"drafters": ["ngram"], "max_k": 3}}
    infos = {
        (8, 3): [EAGLE, with_plugin(EAGLE, "k")],
        (8, 1): [NGRAM, with_plugin(NGRAM, "k")],
        (4, 3): [chain, with_plugin(chain, "k")],
        (1, 1): [with_plugin(chain, "k", "steps"), chain | {"speculative_adaptive": True}],
        (1, 0): [own],
    }
    for least, cases in infos.items():
        for info in cases:
            (drafter,) = lane_ability("a", read_abilities(info)).drafters
            assert (drafter.min_num_rows, drafter.min_num_steps) == least


def test_what_is_not_served_is_known():
    """An engine of ours takes text only, and SGLang what was switched on; what is unknown is left to the lane."""
    ours = read_abilities({"outrider": {"drafters": [], "max_k": 4}})
    assert SURFACES - ours.served == {"lora", "images", "logit_processor", "structural_tag"}
    assert SURFACES - read_abilities(PLAIN | {"enable_lora": False}).served == {"lora", "logit_processor"}
    assert read_abilities({}).served == SURFACES
    grammars = {"json_schema", "regex", "ebnf", "structural_tag"}
    for backend, unknown in (("none", grammars), ("outlines", {"ebnf", "structural_tag"}), ("xgrammar", set())):
        assert SURFACES - read_abilities({"grammar_backend": backend}).served == unknown


def test_a_lanes_own_cost_table_is_taken():
    """And one that is no table makes the lane unusable rather than wrong."""
    table = CostTable(
        version=VERSION, key={}, num_sequences=(1,), widths=(1,), contexts=(1,), round_s=(((0.5,),),),
        bytes_per_token=1, weight_bytes=1, read_s=0.1,
    )  # fmt: skip
    own = {"drafters": [], "max_k": 4, "cost": table.model_dump(mode="json")}
    assert lane_ability("a", read_abilities({"outrider": own})).cost == table
    with pytest.raises(ValueError, match="round_s"):
        read_abilities({"outrider": own | {"cost": {"version": 1}}})


def test_what_a_heads_card_says_is_taken():
    """By drafter, and by lanes of one make alike; what are no rates makes the lane unusable rather than wrong."""
    own = {
        "drafters": ["ngram", "eagle2"],
        "max_k": 4,
        "drafter_info": {"eagle2": {"accuracy": [0.5, 1], "context_length": 2048}, "other": {"context_length": None}},
    }
    one, two = (lane_ability(name, read_abilities({"outrider": own})) for name in ("one", "two"))
    assert one.drafters is two.drafters
    assert [drafter.accuracy for drafter in one.drafters] == [(), (0.5, 1.0)]
    assert [drafter.max_context for drafter in one.drafters] == [None, 2048]
    for wrong in ("half", [2], [None], {"a": 1}):
        with pytest.raises(ValueError, match=r"drafter_info\.eagle2\.accuracy"):
            read_abilities({"outrider": own | {"drafter_info": {"eagle2": {"accuracy": wrong}}}})
