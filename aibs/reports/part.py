"""The parts that documents share: strict, frozen, null for what is unknown."""

from __future__ import annotations

from typing import Annotated

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
    )
