"""What of a checked call goes to the lane: a salt is the tenant's own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.config import KeySection
from outrider.core import Hints
from outrider.dispatch.admission import Claim
from outrider.dispatch.call import Call
from outrider.dispatch.keys import Key

KEY = Key(KeySection(name="k", sha256="0" * 64), 0.0)


def call(tenant: str, body: dict[str, Any], key: Key | None = KEY) -> Call:
    return Call(
        "r", "/v1/chat/completions", json.dumps(body).encode(), body, Hints(), None, False, False, 1, 0.0,
        claim=Claim(tenant=tenant), key=key,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["cache_salt", "extra_key"])
def test_tenants_do_not_share_a_salt(name: str) -> None:
    """One tenant's stays the same from request to request, another's is another, however the two are cut."""
    pairs = [("a", "s"), ("b", "s"), ("a", "b:s"), ("a:b", "s"), ('a","s', "s"), ("a", ["s", "t"])]
    found = [json.loads(call(tenant, {"x": 1, name: salt}).lane_raw) for tenant, salt in pairs]
    assert found[0] == json.loads(call("a", {"x": 1, name: "s"}).lane_raw)
    assert all(one["x"] == 1 and set(one) == {"x", name} for one in found)
    salts = [one[name] for one in found]
    assert len({str(salt) for salt in salts}) == len(pairs) and salts[5][0] == salts[0] != salts[5][1]


def test_other_bodies_go_as_they_came() -> None:
    """Byte for byte: without a salt, with an empty one, and where no keys are in force."""
    body = {"cache_salt": "s", "x": [1]}
    for one in (call("a", {"x": 1}), call("a", {"cache_salt": ""}), call("none", body, None)):
        assert one.lane_raw is one.raw
