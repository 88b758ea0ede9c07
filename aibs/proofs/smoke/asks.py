"""What the test asks for: one request a role, small and always the same. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from aibs.fleet import Fleet, Kind

ROLE_PREFIX = "aibs/"
QUESTION = "Are you there? Answer with one word."
LONG_QUESTION = "Count from one to ten thousand in words, one number on each line."
ANSWER_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to be sent. `role` None: asked for by the model's name."""

    role: str | None
    model: str
    kind: Kind
    streamed: bool = False
    tokens: int = ANSWER_TOKENS
    question: str = QUESTION

    @property
    def asked(self) -> str:
        """The name as the request has it."""
        return self.model if self.role is None else f"{ROLE_PREFIX}{self.role}"

    @property
    def path(self) -> Literal["/api/chat", "/api/embed"]:
        """The route."""
        return "/api/chat" if self.kind == "chat" else "/api/embed"

    @property
    def body(self) -> dict[str, Any]:
        """The body. No option that would reload a model is in it."""
        if self.kind == "embedding":
            return {"model": self.asked, "input": self.question}
        return {
            "model": self.asked,
            "messages": [{"role": "user", "content": self.question}],
            "stream": self.streamed,
            "options": {"num_predict": self.tokens},
        }


def narrow(fleet: Fleet) -> Ask:
    """One request: for the first role of a chat worker, where there is one."""
    asks = _every(fleet)
    return next((ask for ask in asks if ask.kind == "chat"), asks[0])


def broad(fleet: Fleet) -> tuple[Ask, ...]:
    """What an agentic query fans out to: every role once, chats streamed."""
    return tuple(replace(ask, streamed=ask.kind == "chat") for ask in _every(fleet))


def to_be_cut(fleet: Fleet, tokens: int) -> Ask:
    """A request whose client will leave: a long answer, where there is a chat worker."""
    ask = narrow(fleet)
    if ask.kind == "embedding":
        return ask
    return replace(ask, streamed=True, tokens=tokens, question=LONG_QUESTION)


def _every(fleet: Fleet) -> tuple[Ask, ...]:
    """Each role with each kind of its workers, in the roster's order; a worker without a role by
    its model.
    """
    found: dict[tuple[str, str], Ask] = {}
    for worker in fleet.workers:
        for role in worker.roles or (None,):
            ask = Ask(role, worker.model, worker.kind)
            found.setdefault((ask.asked, ask.kind), ask)
    return tuple(found.values())
