"""Which installed model a request's name means, by version, and the errors where it means none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.model_names import InvalidModelName, parse, parse_reference
from aibs.ollama.sim.replies import RequestError

if TYPE_CHECKING:
    from typing import Literal

    from aibs.model_names import ModelName
    from aibs.ollama.sim.profile import Profile, Route
    from aibs.ollama.sim.spec import SimModel

    Asker = Route | Literal["show"]


class Catalog:
    """The models installed on a node, by name."""

    def __init__(self, profile: Profile, models: tuple[SimModel, ...]) -> None:
        self._profile = profile
        self._exact = {model.full_name: model for model in models}
        self._folded = {model.full_name.key: model for model in models}

    def find(self, raw: str, route: Asker) -> SimModel:
        """The model that `raw` names on that route. Raises RequestError 400, 404 or 502."""
        if not raw and (route == "chat" or route == "embeddings" or route == "show"):
            raise RequestError(400, "model is required")
        if not raw:
            raise self._missing(raw, route)
        try:
            name = self._parsed(raw)
        except InvalidModelName as error:
            if self._profile.since(0, 18) or route in ("chat", "show"):
                raise RequestError(400, "invalid model name") from error
            raise self._missing(raw, route) from error
        folds = self._profile.since(0, 5, 2) and route != "embeddings"
        model = self._folded.get(name.key) if folds else self._exact.get(name)
        if model is None:
            raise self._missing(raw, route)
        return model

    def _parsed(self, raw: str) -> ModelName:
        if not self._profile.since(0, 18):
            return parse(raw)
        reference = parse_reference(raw)
        if reference.source == "cloud":
            # Never local: the real server asks its maker's, which a simulated one does not.
            raise RequestError(502, "error while contacting the cloud")
        return reference.name

    def _missing(self, raw: str, route: Asker) -> RequestError:
        if route in ("embed", "embeddings"):
            return RequestError(404, f'model "{raw}" not found, try pulling it first')
        advice = "" if self._profile.since(0, 6) else ", try pulling it first"
        return RequestError(404, f"model '{raw}' not found{advice}")


def require_chat(profile: Profile, model: SimModel, raw: str, route: Route) -> None:
    """Refuse an embedding model where text is generated. Raises RequestError 400."""
    if model.kind == "embedding":
        text = f'"{raw}" does not support {route}'
        if not profile.since(0, 2):
            text = f"embedding models do not support {route}"
        raise RequestError(400, text)
