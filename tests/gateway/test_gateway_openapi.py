"""The document of the API: it names what is served, and nothing else. Other makers' tools check that it is true."""

from __future__ import annotations

import re

from gateway.test_gateway_access import auth
from gateway.world import world
from outrider.app import build
from outrider.config import Config
from outrider.gateway.openapi import document
from outrider.gateway.schema import ROUTES


async def test_it_is_served_to_everybody():
    """Also where keys are in force, since it holds no secret."""
    async with world(auth=auth()) as w, w.http.get(w.gateway.url + "/openapi.json") as response:
        assert response.status == 200
        served = await response.json()
    assert served["openapi"] == "3.1.0"
    assert served["paths"]["/v1/chat/completions"]["post"]["security"] == [{"key": []}]
    assert "security" not in served["paths"]["/ready"]["get"]


def test_every_route_stands_in_it_with_its_summary():
    """Method by method, in a whole sentence; a route that is added later is in it too, by its handler's docstring."""
    app = build(Config(), lanes=[])
    made = document(app.router)
    routed = {(r.resource.canonical, r.method.lower()) for r in app.router.routes() if r.method != "HEAD"}
    told = {(path, method) for path, methods in made["paths"].items() for method in methods}
    assert told == routed
    summaries = [operation["summary"] for methods in made["paths"].values() for operation in methods.values()]
    assert [one for one in summaries if not re.fullmatch(r"[A-Z0-9`].*\.", one)] == []
    assert len({made["paths"][path]["post"]["summary"] for path in ROUTES}) == len(ROUTES)
    parameters = [one["name"] for one in made["paths"]["/v1/models/{id}"]["get"]["parameters"]]
    assert parameters == ["id"]


def test_bodies_are_those_that_are_checked():
    """Every reference resolves, and ranges and choices are the checks' own."""
    made = document(build(Config(), lanes=[]).router)
    schemas = made["components"]["schemas"]
    assert set(re.findall(r"'#/components/schemas/(\w+)'", str(made))) <= set(schemas)
    for path, model in ROUTES.items():
        content = made["paths"][path]["post"]["requestBody"]["content"]
        assert content["application/json"]["schema"] == {"$ref": f"#/components/schemas/{model.__name__}"}
    temperature = schemas["ChatBody"]["properties"]["temperature"]["anyOf"][0]
    assert (temperature["minimum"], temperature["maximum"]) == (0, 2)
    assert {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1} in (
        schemas["CompletionBody"]["properties"]["prompt"]["anyOf"]
    )
    assert schemas["Hints"]["additionalProperties"] is False
