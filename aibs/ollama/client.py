"""A client for one Ollama server: what is resident and installed, warm-up, unload."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from aibs.codec import loads
from aibs.errors import (
    AibsError,
    InvalidResponse,
    ModelNotInstalled,
    NodeLoading,
    NodeUnreachable,
    NodeUnsupported,
    WarmUpFailed,
)
from aibs.ollama.http import Answer, exchange, new_http_client
from aibs.ollama.ps import PsSnapshot, parse_ps
from aibs.ollama.tags import InstalledModel, parse_tags

if TYPE_CHECKING:
    from types import TracebackType

    from aibs.fleet import KeepAlive, Kind

PROBE_TIMEOUT_S = 1.0
"""How long /api/version may take when /api/ps did not answer: it takes no lock in any release."""

GONE_POLL_S = 0.5
WARM_UP_PROMPT = "hi"
_ERROR_TEXT_MAX = 300


class NodeClient:
    """Talks to one node. `timeout_s` bounds every short call as a whole."""

    def __init__(self, base_url: str, *, timeout_s: float) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._http = new_http_client(self.base_url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def ps(self) -> PsSnapshot:
        """What is resident. Raises NodeUnreachable, NodeLoading, NodeUnsupported, InvalidResponse.

        From 0.32.4 on `/api/ps` waits for a load's locks while the rest of the server answers:
        after a timeout a quick look at `/api/version` tells the two apart.
        """
        try:
            answer = await self._get("/api/ps")
        except NodeUnreachable as error:
            if error.reason != "timeout" or not await self._lives():
                raise
            raise NodeLoading(
                f"{self.base_url}/api/ps did not answer within {self._timeout_s:g} s, but the "
                "server lives: a load or an unload holds it up.",
                reason="loading",
            ) from error
        if answer.status == 404:
            raise NodeUnsupported(
                f"{self.base_url} has no /api/ps.",
                reason="unsupported",
                mend="Run Ollama 0.1.38 or newer there, or correct the base path of the URL.",
            )
        self._require_ok(answer, "/api/ps")
        return parse_ps(answer.body)

    async def tags(self) -> tuple[InstalledModel, ...]:
        """What is installed."""
        answer = await self._get("/api/tags")
        self._require_ok(answer, "/api/tags")
        return parse_tags(answer.body)

    async def version(self) -> str | None:
        """The server's version; None where it answers and does not tell."""
        answer = await self._get("/api/version")
        document = _object(answer)
        version = document.get("version") if answer.status == 200 else None
        return version[:64] if isinstance(version, str) and version else None

    async def warm_up(
        self, model: str, kind: Kind, *, num_ctx: int | None, timeout_s: float
    ) -> None:
        """Load a model by a tiny request that is not streamed, and wait for it.

        Cancelling aborts the load on the server. Raises ModelNotInstalled, WarmUpFailed,
        NodeUnreachable, InvalidResponse.
        """
        options = {"num_ctx": num_ctx} if num_ctx else {}
        if kind == "embedding":
            document: dict[str, Any] = {"model": model, "input": WARM_UP_PROMPT}
            if options:
                document["options"] = options
            answer = await self._post("/api/embed", document, timeout_s)
            if _is_no_route(answer):
                document["prompt"] = document.pop("input")
                answer = await self._post("/api/embeddings", document, timeout_s)
        else:
            document = {
                "model": model,
                "prompt": WARM_UP_PROMPT,
                "stream": False,
                "options": {"num_predict": 1, **options},
            }
            answer = await self._post("/api/generate", document, timeout_s)
        self._require_done(answer, model)

    async def load_only(
        self,
        model: str,
        kind: Kind,
        *,
        num_ctx: int | None,
        keep_alive: KeepAlive,
        timeout_s: float,
    ) -> None:
        """Load without generating, or set a resident model's keep-alive with the same options.

        Raises as warm_up does.
        """
        document: dict[str, Any] = {"model": model}
        if num_ctx:
            document["options"] = {"num_ctx": num_ctx}
        if keep_alive is not None:
            document["keep_alive"] = keep_alive
        if kind == "embedding":
            answer = await self._post("/api/embed", document, timeout_s)
            if answer.status == 400 or _is_no_route(answer):
                # Before 0.3.6 that route wants an input, before 0.2.6 there is none; the older
                # route loads without a prompt in every release.
                answer = await self._post("/api/embeddings", document, timeout_s)
        else:
            answer = await self._post("/api/generate", document, timeout_s)
        self._require_done(answer, model)

    async def unload(self, model: str) -> None:
        """Ask for an unload: acknowledged at once, done when active requests are.

        The generate route unloads embedding models too; the embed routes would load them first.
        Before 0.3.11 it refuses them, and those routes are the only way. Raises as warm_up does.
        """
        document = {"model": model, "keep_alive": 0, "stream": False}
        answer = await self._post("/api/generate", document, self._timeout_s)
        if answer.status == 400:
            answer = await self._post(
                "/api/embeddings", {"model": model, "keep_alive": 0}, self._timeout_s
            )
        self._require_done(answer, model)

    async def wait_gone(self, key: str | None, digest: str | None, *, timeout_s: float) -> bool:
        """Poll until neither name nor digest is resident; False when `timeout_s` passed first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                models = (await self.ps()).models
                if not any(m.key == key or (digest and m.digest == digest) for m in models):
                    return True
            except AibsError:
                # No answer is no news: what was resident may still be.
                pass
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(GONE_POLL_S)

    async def _lives(self) -> bool:
        try:
            answer = await exchange(
                self._http,
                "GET",
                f"{self.base_url}/api/version",
                timeout_s=min(PROBE_TIMEOUT_S, self._timeout_s),
            )
        except AibsError:
            return False
        return answer.status == 200

    async def _get(self, path: str) -> Answer:
        return await exchange(
            self._http, "GET", f"{self.base_url}{path}", timeout_s=self._timeout_s
        )

    async def _post(self, path: str, document: dict[str, Any], timeout_s: float) -> Answer:
        return await exchange(
            self._http, "POST", f"{self.base_url}{path}", timeout_s=timeout_s, document=document
        )

    def _require_ok(self, answer: Answer, path: str) -> None:
        if answer.status == 200:
            return
        mend = ""
        if answer.status == 403:
            mend = (
                "Ollama refuses host names other than local ones while it listens on loopback "
                "only: set OLLAMA_HOST there, or use the machine's address."
            )
        raise InvalidResponse(
            f"{self.base_url}{path} answered with status {answer.status}.",
            reason=f"http_{answer.status}",
            mend=mend,
        )

    def _require_done(self, answer: Answer, model: str) -> None:
        document = _object(answer)
        error = document.get("error")
        text = error[:_ERROR_TEXT_MAX] if isinstance(error, str) else ""
        if answer.status == 404 and text:
            raise ModelNotInstalled(
                f"{model} is not installed on {self.base_url}.",
                reason="not_installed",
                mend=f"Run `ollama pull {model}` there.",
            )
        # Before 0.12.6 a failure could come with status 200.
        if answer.status != 200 or error is not None:
            raise WarmUpFailed(
                f"{self.base_url} could not run {model}: {text or f'status {answer.status}'}.",
                reason=f"http_{answer.status}",
            )
        if document.get("done") is not True and not any(
            isinstance(document.get(member), list) for member in ("embeddings", "embedding")
        ):
            # A proxy's sign-in page has status 200 too, and nothing was loaded.
            raise InvalidResponse(
                f"{self.base_url} answered for {model} with something that is not a reply.",
                reason="invalid_response",
            )


def _is_no_route(answer: Answer) -> bool:
    """Whether the server lacks the route: a missing model is a 404 with an error in JSON."""
    return answer.status == 404 and not _object(answer)


def _object(answer: Answer) -> dict[str, Any]:
    """The body's JSON object; its last line where it is several; empty where it is none."""
    for body in (answer.body, answer.body.strip().rpartition(b"\n")[2]):
        try:
            document = loads(body)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            return document
    return {}
