"""The OpenAPI document: complete, of one piece, and true to what is served."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

import pytest

from aibs.gateway.control import control_routes
from aibs.gateway.control.answers import EXAMPLES, MODELS
from aibs.gateway.control.openapi import PROXIED, document
from tests.gateway_server import context_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document()["paths"].items():
        assert set(item) <= METHODS, path
        for method, operation in item.items():
            yield path, method, operation


def test_it_is_a_document_of_openapi_3_1() -> None:
    found = document()
    assert found["openapi"] == "3.1.0"
    assert {"title", "version"} <= set(found["info"])
    assert json.loads(json.dumps(found)) == found
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names))
    tags = {tag["name"] for tag in found["tags"]}
    for path, method, operation in operations():
        assert set(operation["tags"]) <= tags
        assert operation["summary"]
        told = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
        assert told == set(re.findall(r"{(\w+)}", path)), path
        for status, answer in operation["responses"].items():
            assert re.fullmatch("[2-5][0-9][0-9]", status)
            assert answer["description"], (path, method, status)


def test_every_reference_leads_somewhere() -> None:
    text = json.dumps(document())
    schemas = document()["components"]["schemas"]
    references = set(re.findall(r'"\$ref": "([^"]+)"', text))
    assert references
    for reference in references:
        start, _, name = reference.rpartition("/")
        assert start == "#/components/schemas"
        assert name in schemas
    used = {reference.rpartition("/")[2] for reference in references}
    assert set(schemas) <= used, "a schema that nothing refers to"


def test_every_route_of_the_control_plane_is_described(tmp_path: Path) -> None:
    context = context_of({"AIBS_DATA_DIR": str(tmp_path)}, local=False)
    described: dict[str, set[str]] = {}
    for path, method, _ in operations():
        described.setdefault(path, set()).add(method.upper())
    proxied = {path for _, path, _ in PROXIED}
    served = {
        route.path: set(cast("Any", route.endpoint)._handlers) - {"HEAD"}
        for route in control_routes(context)
    }
    assert {path: methods for path, methods in described.items() if path not in proxied} == served


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_example_is_one(name: str) -> None:
    (model,) = (model for model in MODELS if model.__name__ == name)
    read = model.model_validate(EXAMPLES[name])
    assert set(EXAMPLES[name]) <= set(model.model_fields)
    # Nothing that is asked for is missing from what is shown as an answer.
    if not name.endswith("Body"):
        assert read.model_dump() == EXAMPLES[name]
