"""Refusals in the client's own format."""

from __future__ import annotations

import pytest

from aibs.codec import loads
from aibs.gateway.replies import error_body, error_response, retry_after_s


def test_an_ollama_client_gets_its_own_error_object() -> None:
    assert loads(error_body("/api/chat", "No node.", "no_slot", 503, 250)) == {
        "error": "No node.",
        "reason": "no_slot",
        "retry_after_ms": 250,
    }
    assert loads(error_body("/api/chat", "Bad.", None, 400)) == {
        "error": "Bad.",
        "reason": "bad_request",
        "retry_after_ms": None,
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (503, "api_error"),
        (500, "api_error"),
    ],
)
def test_an_openai_client_gets_its_own_error_object(status: int, kind: str) -> None:
    assert loads(error_body("/v1/chat/completions", "No.", "no_slot", status, 250)) == {
        "error": {"message": "No.", "type": kind, "param": None, "code": "no_slot"}
    }


def test_the_control_routes_answer_with_reason_and_detail() -> None:
    assert loads(error_body("/placements", "No.", None, 400)) == {
        "reason": "bad_request",
        "detail": "No.",
    }
    assert loads(error_body("/status", "No.", "no_slot", 503, 7))["retry_after_ms"] == 7


@pytest.mark.parametrize("path", ["/placements", "/placements/l1", "/placements/l1/heartbeat"])
def test_every_503_of_the_placements_has_what_a_denial_has(path: str) -> None:
    assert loads(error_body(path, "No.", "shutting_down", 503, 1000)) == {
        "reason": "shutting_down",
        "detail": "No.",
        "nodes": [],
        "retry_after_ms": 1000,
        "position": None,
    }


@pytest.mark.parametrize("path", ["/api/chat", "/v1/models", "/status"])
def test_no_refusal_is_without_a_code(path: str) -> None:
    for status in (*range(400, 432), 500, 502, 503, 504):
        document = loads(error_body(path, "No.", None, status))
        code = document["error"]["code"] if path == "/v1/models" else document["reason"]
        assert code
        assert code == ("failed" if status >= 500 else code)


def test_a_client_is_never_told_to_ask_again_at_once() -> None:
    assert [retry_after_s(ms) for ms in (0, 1, 1000, 1001)] == [1, 1, 1, 2]
    answer = error_response("/api/chat", "No.", "no_slot", 503, 1500, {"X-AIBS-Queue-Ms": "3"})
    assert answer.headers["retry-after"] == "2"
    assert answer.headers["x-aibs-queue-ms"] == "3"
    assert answer.headers["content-type"] == "application/json"
    assert "retry-after" not in error_response("/api/chat", "No.", None, 400).headers


def test_text_that_is_no_unicode_cannot_break_an_answer() -> None:
    assert loads(error_body("/api/chat", "model '\ud800' not found", None, 404))["error"] == (
        "model '?' not found"
    )
