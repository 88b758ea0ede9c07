"""The parts that documents share: strict, frozen, null for what is unknown."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Timestamp = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]


class Part(BaseModel):
    """A part of a document."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        # "schema" is the contract's word and pydantic's own attribute; only the alias is printed.
        protected_namespaces=(),
        # What has a default is printed all the same.
        json_schema_serialization_defaults_required=True,
    )


def schema_of(model: type[BaseModel], name: str) -> dict[str, Any]:
    """The JSON Schema of a document as it is printed, under its name and version."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": name,
        **model.model_json_schema(by_alias=True, mode="serialization"),
    }
