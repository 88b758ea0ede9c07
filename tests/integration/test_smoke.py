"""`aibs smoke` against a real gateway, and against gateways that do one thing wrong each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from aibs.codec import dumps, loads
from aibs.placement import open_placer
from aibs.proofs.smoke.document import SmokeDocument
from aibs.proofs.smoke.gateway import Gateway
from aibs.proofs.smoke.service import smoke
from aibs.settings import load
from tests.gateway_server import serving
from tests.integration.in_loop import in_loop
from tests.served_fleet import ENABLED, served_fleet, specs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response

    from aibs.placement import HeldLease, Placer
    from aibs.proofs.smoke.document import SmokeStep
    from tests.served_fleet import Served

STEPS = ["audit", "narrow", "broad", "concurrent_broad", "cancelled", "no_leaks"]


def document_of(text: str) -> SmokeDocument:
    return SmokeDocument.model_validate(loads(text))


def step(document: SmokeDocument, name: str) -> SmokeStep:
    return next(one for one in document.steps if one.name == name)


# --- the real gateway


@in_loop
async def test_a_fleet_with_cold_models_keys_and_other_traffic_passes(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    keys = {"AIBS_API_KEYS": "app:s3cret"}
    async with (
        served_fleet(valkey_url, namespace, tmp_path) as fleet,
        fleet.gateway(**keys),
        others(fleet, "s3cret"),
    ):
        status, out, err = await fleet.run("smoke", "--json", **keys)
        events = await _events(fleet)
    document = document_of(out)
    assert (status, document.passed) == (0, True), f"{out} {err}"
    assert [one.name for one in document.steps] == STEPS
    counts = [len(one.requests) for one in document.steps]
    assert counts[:4] == [0, 1, 3, 6]
    ids = {request.request_id for one in document.steps for request in one.requests}
    for request_id in ids:
        leases = [
            event.data["lease"]["lease_id"]
            for event in events
            if event.type == "LeaseAcquired" and event.data["lease"]["request_id"] == request_id
        ]
        ends = [
            event.data["outcome"]
            for event in events
            if event.type == "LeaseReleased" and event.data["lease_id"] in leases
        ]
        assert len(leases) == len(ends) == 1
    assert step(document, "cancelled").requests[-1].outcome == "cancelled"


@in_loop
async def test_answers_that_are_whole_before_they_can_be_left_are_left_sooner(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    fast = specs(load_s=0, token_s=0, tokens=4)
    async with (
        served_fleet(valkey_url, namespace, tmp_path, nodes=fast) as fleet,
        fleet.gateway(),
    ):
        status, out, err = await fleet.run("smoke", "--json")
    cut = step(document_of(out), "cancelled")
    assert (status, cut.passed) == (0, True), f"{out} {err}"
    assert [one.outcome for one in cut.requests[:-1]] == ["completed"] * (len(cut.requests) - 1)


@in_loop
async def test_a_gateway_that_was_not_restarted_into_the_pool_fails_and_is_told_to_be(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        served_fleet(valkey_url, namespace, tmp_path) as fleet,
        fleet.gateway("--local-anyway", **{ENABLED: "false"}),
    ):
        status, out, _ = await fleet.run("smoke", "--json", "--timeout", "20")
    document = document_of(out)
    assert status == 1
    assert "admits requests by itself" in step(document, "audit").detail
    assert all(one.detail.startswith("not run") for one in document.steps[1:])


@in_loop
async def test_settings_without_the_scheduler_enabled_fail_the_audit_and_send_nothing(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served_fleet(valkey_url, namespace, tmp_path) as fleet, fleet.gateway():
        status, out, _ = await fleet.run("smoke", "--json", **{ENABLED: "false"})
        requests = [event for event in await _events(fleet) if event.type == "LeaseAcquired"]
    document = document_of(out)
    assert status == 1
    assert "cluster_enabled is false" in step(document, "audit").detail
    assert all(one.detail.startswith("not run") for one in document.steps[1:])
    assert not requests


@in_loop
async def test_a_gateway_that_is_away_or_another_server_ends_with_status_3_and_a_sentence(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served_fleet(valkey_url, namespace, tmp_path) as fleet:
        status, out, err = await fleet.run("smoke", "--json")
        assert (status, out) == (3, "")
        assert err.startswith(f"aibs: The gateway at {fleet.url} does not answer")
        status, out, err = await fleet.run("smoke", "--url", fleet.nodes.urls[0])
        assert (status, out) == (3, "")
        assert "is no gateway of aibs" in err


@in_loop
async def test_a_missing_or_wrong_key_ends_with_status_2_and_the_option_that_mends_it(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("not-this-one\n")
    async with (
        served_fleet(valkey_url, namespace, tmp_path) as fleet,
        fleet.gateway(AIBS_API_KEYS="app:s3cret"),
    ):
        for arguments in ((), ("--key-file", str(wrong))):
            status, out, err = await fleet.run("smoke", "--json", *arguments)
            assert (status, out) == (2, "")
            assert "--key-file" in err
            assert "not-this-one" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@in_loop
async def test_interrupted_in_the_middle_it_leaves_no_lease(
    valkey_url: str, namespace: str, tmp_path: Path, number: signal.Signals
) -> None:
    slow = specs(load_s=0, token_s=0.2)
    async with (
        served_fleet(valkey_url, namespace, tmp_path, nodes=slow) as fleet,
        fleet.gateway(),
    ):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aibs", "smoke"),
            env=fleet.environment(),
            cwd=fleet.directory,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        await fleet.pool.until(
            lambda events: sum(event.type == "LeaseAcquired" for event in events) >= 2,
            "the broad query is placed",
        )
        os.kill(process.pid, number)
        _, err = await process.communicate()
        assert process.returncode == 130, err
        assert b"Traceback" not in err
        await fleet.pool.until(
            lambda events: (
                sum(event.type == "LeaseAcquired" for event in events)
                == sum(event.type == "LeaseReleased" for event in events)
            ),
            "every lease is given back",
        )


# --- gateways that do one thing wrong


INVENTED = {"X-AIBS-Request": "f" * 32, "X-AIBS-Lease": "f" * 32, "X-AIBS-Node": "box-c"}


class StandIn:
    """A gateway that answers by itself, under real leases; `fault` is what it does wrong."""

    def __init__(self, placer: Placer, fault: str) -> None:
        self._placer = placer
        self._fault = fault
        self._held: list[Any] = []
        self._running: set[asyncio.Task[None]] = set()
        self.app = Starlette(
            routes=[
                Route("/", lambda _: PlainTextResponse("here")),
                Route("/health", lambda _: JSONResponse({"status": "ok"})),
                Route("/api/chat", self._chat, methods=["POST"]),
                Route("/api/embed", self._embed, methods=["POST"]),
            ]
        )

    async def close(self) -> None:
        await asyncio.gather(*self._running)
        for block in self._held:
            await block.__aexit__(None, None, None)

    async def _embed(self, request: Request) -> Response:
        if self._fault == "it places nothing":
            return JSONResponse({"embeddings": [[0.1]]}, headers=INVENTED)
        return await self._whole(request, {"embeddings": [[0.1]]})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        if self._fault == "it places nothing":
            return JSONResponse({"done": True}, headers=INVENTED)
        if not body["stream"]:
            return await self._whole(request, {"done": True})
        block = self._block(body)
        lease = await block.__aenter__()
        if self._fault == "it works on for a client that left":
            task = asyncio.create_task(self._work(block))
            self._running.add(task)
            return StreamingResponse(self._lines(None, lease), headers=self._headers(lease))
        return StreamingResponse(self._lines(block, lease), headers=self._headers(lease))

    async def _whole(self, request: Request, answer: dict[str, Any]) -> Response:
        block = self._block(await request.json())
        lease = await block.__aenter__()
        await self._end(block, lease)
        return JSONResponse(answer, headers=self._headers(lease))

    async def _lines(self, block: Any, lease: HeldLease) -> AsyncIterator[bytes]:
        kind: type[BaseException] | None = None
        try:
            for number in range(40):
                yield dumps({"message": {"content": str(number)}, "done": False}) + b"\n"
                await asyncio.sleep(0.02)
            yield dumps({"done": True}) + b"\n"
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            if block is not None:
                await self._end(block, lease, cancelled=kind is not None)

    async def _work(self, block: Any) -> None:
        await asyncio.sleep(1)
        await block.__aexit__(None, None, None)

    def _block(self, body: dict[str, Any]) -> Any:
        return self._placer.lease(role=body["model"].removeprefix("aibs/"), timeout=10)

    async def _end(self, block: Any, lease: HeldLease, *, cancelled: bool = False) -> None:
        if self._fault == "it keeps a lease":
            self._held.append(block)
            return
        if self._fault == "it ends leases as failed":
            lease.end_as("failed")
        if cancelled:
            lease.end_as("cancelled")
        await block.__aexit__(None, None, None)
        if self._fault == "it gives back twice":
            await self._placer.backend.release(lease.grant, "completed", call_id="again")

    def _headers(self, lease: HeldLease) -> dict[str, str]:
        told = "0" * 32 if self._fault == "it tells another lease" else lease.lease_id
        return {
            "X-AIBS-Request": lease.request_id,
            "X-AIBS-Lease": told,
            "X-AIBS-Node": lease.node_id,
        }


@pytest.mark.parametrize(
    ("fault", "failing", "words"),
    [
        ("none", set(), ""),
        ("it places nothing", {"narrow", "broad", "no_leaks"}, "does not place through that pool"),
        ("it keeps a lease", {"narrow", "broad", "no_leaks"}, "has not ended"),
        ("it ends leases as failed", {"narrow", "broad"}, "its lease ended as failed"),
        ("it gives back twice", {"narrow", "broad", "no_leaks"}, "was given back twice"),
        ("it tells another lease", {"narrow", "broad"}, "the gateway named lease 000"),
        ("it works on for a client that left", {"cancelled"}, "not as cancelled"),
    ],
)
@in_loop
async def test_each_thing_that_a_gateway_does_wrong_fails_its_steps(
    valkey_url: str,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    failing: set[str],
    words: str,
) -> None:
    monkeypatch.setattr("aibs.proofs.smoke.steps.END_WITHIN_S", 2.0)
    many = 16
    async with served_fleet(valkey_url, namespace, tmp_path, slots=many) as fleet:
        settings = load(fleet.environ, None)
        async with open_placer(settings, role="stand-in") as placer:
            stand_in = StandIn(placer, fault)
            async with serving(stand_in.app) as url:
                gateway = Gateway(url, None, wait_s=5, timeout_s=10)
                tested = await smoke(settings, gateway, lambda _line: None)
            await stand_in.close()
    document = tested.document
    failed = {one.name for one in document.steps if not one.passed}
    assert failing <= failed, document
    assert bool(failed) == bool(failing), document
    details = " ".join(one.detail for one in document.steps if not one.passed)
    assert words in details
    assert document.passed == (not failing)


# --- other traffic, and the log


@contextlib.asynccontextmanager
async def others(fleet: Served, key: str) -> AsyncIterator[None]:
    """Somebody else's requests, one after the other, until the block is left."""
    import httpx

    body = {"model": "llama3:8b", "messages": [{"role": "user", "content": "hi"}], "stream": False}
    headers = {"Authorization": f"Bearer {key}"}

    async def ask() -> None:
        async with httpx.AsyncClient(timeout=30, trust_env=False, headers=headers) as client:
            while True:
                await client.post(f"{fleet.url}/api/chat", json=body)

    task = asyncio.create_task(ask())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _events(fleet: Served) -> list[Any]:
    return await fleet.pool.events()
