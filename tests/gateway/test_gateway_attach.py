from __future__ import annotations

import json

from test_gateway_stream import DETAILS, make_run

from outrider.gateway.attach import passed_headers, plan_headers, take_stats, with_report, without_stats


def test_headers_are_printable_ascii():
    """Whatever a lane or a policy is called."""
    run = make_run(drafter="ngram", k=2)
    run.lane.name = "naïve\r\nx: y"
    run.outcome.queued_s, run.outcome.phases["admit"] = 0.0125, 0.2
    headers = plan_headers(run)
    assert headers["x-outrider-lane"] == "na?ve??x: y"
    assert (headers["x-outrider-drafter"], headers["x-outrider-k"]) == ("ngram", "2")
    assert headers["x-outrider-queue-ms"] == "12.500"


def test_only_our_names_pass():
    """Of the lane's headers, those that begin like ours."""
    assert passed_headers({"X-Outrider-Slots": "1", "Server": "x"}) == {"x-outrider-slots": "1"}


def test_statistics_that_cannot_be_read_are_none_with_a_reason():
    """Once per answer in the reasons, and counted."""
    run = make_run()
    take_stats(run, [DETAILS | {"spec_num_correct_drafts": 9}])
    assert run.outcome.stats is None
    assert run.report()["observed"] is None
    assert "contradict" in run.report()["reasons"][-1]


def test_no_statistics_are_no_observation_and_no_reason():
    """Missing is not zero, and not a contradiction."""
    run = make_run()
    take_stats(run, [None])
    take_stats(run, None)
    assert run.report()["observed"] is None
    assert run.report()["reasons"] == list(run.decision.reasons)


def test_statistics_leave_a_whole_answer_but_nothing_else_does():
    """A body keeps its other bytes."""
    run = make_run()
    raw = b'{"choices":[{"x":1.0}], "sglext" : {"spec_tokens_details":{}} ,"z":2}'
    assert without_stats(run, raw, json.loads(raw)) == b'{"choices":[{"x":1.0}],"z":2}'


def test_a_whole_answer_gets_the_report_and_loses_the_statistics_at_once():
    """What else the lane says beside them stays, before ours; who asked for the statistics keeps them."""
    raw = b'{"a":1.0,"sglext": {"spec_tokens_details":{}, "x" : 2.0},"choices":[]}'
    shown = with_report(make_run(), raw, json.loads(raw))
    assert shown.startswith(b'{"a":1.0,"choices":[],"sglext":{ "x" : 2.0},"outrider":{')
    kept = with_report(make_run(wants_stats=True), raw, json.loads(raw))
    assert kept.startswith(raw[:-1] + b',"outrider":{')


def test_a_lanes_own_report_is_replaced():
    """There is one `outrider` object in an answer, ours."""
    raw = with_report(make_run(), b'{"outrider":1,"a":1.0}')
    assert raw.startswith(b'{"a":1.0,"outrider":{')
    assert raw.count(b'"outrider"') == 1


def test_an_unknown_number_of_proposed_drafts_is_null():
    """A lane that cannot count them gives no rate."""
    run = make_run(drafter="ngram", k=2)
    take_stats(run, [DETAILS])
    body = json.loads(with_report(run, b"{}"))
    assert body["metrics"]["speculative_decoding"]["draft_acceptance_rate"] is None
    assert body["outrider"]["observed"]["num_proposed"] is None
