"""The simulated server's rules that need no server: versions, names, eviction, reloads, ps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from aibs.errors import ConfigurationError
from aibs.ollama.keep_alive import FOREVER_NS
from aibs.ollama.sim import Faults, SimModel, SimSpec
from aibs.ollama.sim.access import host_allowed, origin_allowed
from aibs.ollama.sim.catalog import Catalog
from aibs.ollama.sim.faults import merged
from aibs.ollama.sim.options import NodeWords, size_bytes, specs_of
from aibs.ollama.sim.profile import NAMED, profile_of
from aibs.ollama.sim.ps_view import ps_document
from aibs.ollama.sim.replies import RequestError, rfc3339_nano
from aibs.ollama.sim.runner import Runner, RunnerOptions, choose_victim, room_for

if TYPE_CHECKING:
    from aibs.ollama.sim.profile import Route

GB = 10**9
NOW_NS = 1_787_227_512 * GB
MINUTE_NS = 60 * GB


def runner(name: str, keep_alive_ns: int, *, active: int = 0, **changes: Any) -> Runner:
    made = Runner(
        model=SimModel(name, 10 * GB),
        options=RunnerOptions(None),
        size_bytes=10 * GB,
        size_vram_bytes=10 * GB,
        context_length=4096,
        slots=asyncio.Semaphore(1),
        keep_alive_ns=keep_alive_ns,
        state="ready",
        active=active,
        expires_at_ns=NOW_NS + keep_alive_ns,
    )
    for member, value in changes.items():
        setattr(made, member, value)
    return made


# Eviction.


def victim(*runners: Runner) -> str | None:
    chosen = choose_victim(runners)
    return chosen.model.name if chosen else None


def test_the_shortest_keep_alive_goes_first_not_the_oldest_nor_the_largest() -> None:
    large = runner("large", 5 * MINUTE_NS, size_bytes=80 * GB)
    assert victim(large, runner("short", MINUTE_NS), runner("ever", FOREVER_NS)) == "short"


def test_for_ever_goes_last_and_goes_all_the_same() -> None:
    assert victim(runner("ever", FOREVER_NS)) == "ever"


def test_the_blob_decides_between_equal_keep_alives() -> None:
    assert victim(runner("b", MINUTE_NS), runner("a", MINUTE_NS)) == "a"


def test_an_idle_one_goes_before_a_busy_one_of_shorter_keep_alive() -> None:
    assert victim(runner("busy", MINUTE_NS, active=1), runner("idle", FOREVER_NS)) == "idle"


def test_where_all_are_busy_the_shortest_keep_alive_is_told_to_go() -> None:
    busy = [runner("a", 2 * MINUTE_NS, active=1), runner("b", MINUTE_NS, active=2)]
    assert victim(*busy) == "b"


def test_one_that_goes_already_is_not_chosen_again() -> None:
    assert victim(runner("a", 0, state="closing")) is None


# Memory.


@pytest.mark.parametrize(
    ("profile", "others", "size", "vram"),
    [
        ("0.12", 0, 20 * GB, 20 * GB),
        ("0.12", 0, 200 * GB, 50 * GB),
        ("0.12", 2, 30 * GB, 30 * GB),
        ("0.12", 2, 31 * GB, -1),
        ("0.30", 2, 24 * GB, 24 * GB),
        ("0.30", 2, 25 * GB, -1),
        ("0.30", 0, 49 * GB, 49 * GB),
        ("0.30", 3, 1 * GB, -1),
    ],
)
def test_next_to_others_a_model_is_loaded_whole_or_not_at_all(
    profile: str, others: int, size: int, vram: int
) -> None:
    spec = SimSpec(vram_bytes=50 * GB, profile=profile)
    held = [runner(f"m{index}", MINUTE_NS) for index in range(others)]
    assert room_for(spec, held, 0, size) == vram


def test_memory_that_is_not_back_yet_is_not_free() -> None:
    spec = SimSpec(vram_bytes=50 * GB, profile="0.12")
    assert room_for(spec, [runner("a", MINUTE_NS)], 10 * GB, 35 * GB) == -1


def test_a_server_without_a_gpu_puts_nothing_there() -> None:
    assert room_for(SimSpec(vram_bytes=0), [runner("a", MINUTE_NS)], 0, 90 * GB) == 0


# Reloads.


def options(profile: str, **given: Any) -> RunnerOptions:
    spec = SimSpec(vram_bytes=50 * GB, profile=profile)
    return RunnerOptions.of(spec, SimModel("a", GB, max_context=8192), given)


@pytest.mark.parametrize(
    ("profile", "running", "asked", "same"),
    [
        ("0.32", {}, {}, True),
        ("0.32", {"num_ctx": 4096}, {}, False),
        ("0.32", {}, {"num_ctx": 4096}, False),
        ("0.12", {}, {"num_ctx": 4096}, True),
        ("0.12", {}, {"num_ctx": 8192}, False),
        ("0.32", {"num_ctx": 8192}, {"num_ctx": 100_000}, True),
        ("0.32", {"num_ctx": 1}, {"num_ctx": 4}, True),
        ("0.32", {"num_gpu": 20}, {}, True),
        ("0.32", {"num_gpu": 20}, {"num_gpu": -1}, True),
        ("0.32", {"num_gpu": 20}, {"num_gpu": 10}, False),
        ("0.32", {}, {"num_thread": 4}, False),
        ("0.32", {}, {"use_mmap": False}, False),
        ("0.32", {}, {"temperature": 0.1, "num_predict": 5, "seed": 1}, True),
    ],
)
def test_only_options_of_the_runner_reload_it(
    profile: str, running: dict[str, Any], asked: dict[str, Any], same: bool
) -> None:
    assert options(profile, **running).runs(options(profile, **asked)) is same


@pytest.mark.parametrize("value", ["4096", True, [1]])
def test_an_option_of_the_wrong_type_is_a_500(value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        options("0.32", num_ctx=value)
    assert caught.value.status == 500


# Versions.


@pytest.mark.parametrize(
    ("version", "route", "keep_alive_ns", "unloads"),
    [
        ("0.3.10", "generate", 0, False),
        ("0.3.11", "generate", 0, True),
        ("0.3.11", "generate", GB // 2, True),
        ("0.11.8", "generate", GB // 2, False),
        ("0.11.8", "chat", GB // 2, False),
        ("0.12.0", "chat", GB // 2, True),
        ("0.12.0", "generate", GB // 2, False),
        ("0.12.4", "chat", GB // 2, False),
        ("0.32", "chat", 0, True),
        ("0.32", "chat", None, False),
        ("0.32", "embed", 0, False),
        ("0.32", "embeddings", 0, False),
    ],
)
def test_which_call_unloads_depends_on_version_and_route(
    version: str, route: Route, keep_alive_ns: int | None, unloads: bool
) -> None:
    assert profile_of(version).unloads(route, keep_alive_ns) is unloads


@pytest.mark.parametrize(
    ("version", "llama", "ollama", "mlx"),
    [
        ("0.9", True, True, True),
        ("0.11.4", True, True, True),
        ("0.12", False, True, True),
        ("0.30", False, False, True),
    ],
)
def test_which_model_shows_before_it_is_loaded_depends_on_version_and_engine(
    version: str, llama: bool, ollama: bool, mlx: bool
) -> None:
    profile = profile_of(version)
    assert profile.visible_while_loading("llama") is llama
    assert profile.visible_while_loading("ollama") is ollama
    assert profile.visible_while_loading("mlx") is mlx


@pytest.mark.parametrize("name", NAMED)
def test_a_short_name_is_a_release_of_that_name(name: str) -> None:
    assert profile_of(name).version.startswith(f"{name}.")


@pytest.mark.parametrize("name", ["", "latest", "0", "1.2.3.4", "0.x"])
def test_what_is_no_version_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        profile_of(name)


def entry_of(version: str, **changes: Any) -> dict[str, Any]:
    document = ps_document(profile_of(version), [runner("a", MINUTE_NS, **changes)], NOW_NS)
    (entry,) = document["models"]
    assert isinstance(entry, dict)
    return entry


def test_the_oldest_ps_leaves_out_a_size_vram_of_nothing() -> None:
    entry = entry_of("0.1.38", size_vram_bytes=0)
    assert "size_vram" not in entry
    assert entry["modified_at"] == "0001-01-01T00:00:00Z"
    assert entry_of("0.1.38")["size_vram"] == 10 * GB
    newer = entry_of("0.1.42", size_vram_bytes=0)
    assert newer["size_vram"] == 0
    assert "modified_at" not in newer


def test_the_context_length_came_with_0_10() -> None:
    assert "context_length" not in entry_of("0.9")
    assert entry_of("0.10.0")["context_length"] == 4096


def test_ps_shows_the_latest_expiry_first_to_the_second() -> None:
    runners = [
        runner("soon", MINUTE_NS),
        runner("ever", FOREVER_NS - NOW_NS),
        runner("soon-too", MINUTE_NS + 1000),
    ]
    document = ps_document(profile_of("0.32"), runners, NOW_NS)
    names = [entry["name"] for entry in document["models"]]
    assert names == ["ever:latest", "soon:latest", "soon-too:latest"]


def test_an_expiry_that_was_never_set_slides_with_the_look() -> None:
    first = runner("a", MINUTE_NS, expires_at_ns=None)
    looks = [
        ps_document(profile_of("0.32"), [first], NOW_NS + passed)["models"][0]["expires_at"]
        for passed in (0, GB)
    ]
    assert looks == ["2026-08-20T12:06:12Z", "2026-08-20T12:06:13Z"]


@pytest.mark.parametrize(
    ("at_ns", "text"),
    [
        (NOW_NS, "2026-08-20T12:05:12Z"),
        (NOW_NS + 500_000_000, "2026-08-20T12:05:12.5Z"),
        (NOW_NS + 1, "2026-08-20T12:05:12.000000001Z"),
    ],
)
def test_times_have_up_to_nine_digits_without_trailing_zeros(at_ns: int, text: str) -> None:
    assert rfc3339_nano(at_ns) == text


# Names.

MODELS = (SimModel("Llama3", GB), SimModel("hf.co/Org/Repo:Q4_K_M", GB))


@pytest.mark.parametrize(
    ("version", "raw", "route", "outcome"),
    [
        ("0.32", "llama3", "chat", "Llama3"),
        ("0.32", "LLAMA3:LATEST", "generate", "Llama3"),
        ("0.32", " llama3 ", "chat", "Llama3"),
        ("0.32", "llama3:local", "chat", "Llama3"),
        ("0.32", "HF.co/org/repo:q4_k_m", "embed", "hf.co/Org/Repo:Q4_K_M"),
        ("0.32", "llama3", "embeddings", 404),
        ("0.32", "Llama3", "embeddings", "Llama3"),
        ("0.5.1", "llama3", "chat", 404),
        ("0.5.1", "library/Llama3:latest", "chat", "Llama3"),
        ("0.5.2", "llama3", "chat", "Llama3"),
        ("0.9", " llama3 ", "generate", 404),
        ("0.9", "llama 3", "chat", 400),
        ("0.32", "llama 3", "generate", 400),
        ("0.32", "", "chat", 400),
        ("0.32", "", "embeddings", 400),
        ("0.32", "", "generate", 404),
        ("0.32", "", "embed", 404),
        ("0.32", "llama3:cloud", "chat", 502),
        ("0.32", "other", "chat", 404),
    ],
)
def test_a_name_is_resolved_as_that_version_does(
    version: str, raw: str, route: Route, outcome: str | int
) -> None:
    catalog = Catalog(profile_of(version), MODELS)
    if isinstance(outcome, str):
        assert catalog.find(raw, route).name == outcome
        return
    with pytest.raises(RequestError) as caught:
        catalog.find(raw, route)
    assert caught.value.status == outcome


def test_a_missing_model_is_told_in_the_words_of_its_route() -> None:
    catalog = Catalog(profile_of("0.32"), MODELS)
    with pytest.raises(RequestError) as chat:
        catalog.find("m", "chat")
    with pytest.raises(RequestError) as embed:
        catalog.find("m", "embed")
    assert chat.value.text == "model 'm' not found"
    assert embed.value.text == 'model "m" not found, try pulling it first'


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:11434", True),
        ("127.0.0.1:1", True),
        ("[::1]:11434", True),
        ("192.168.1.4", True),
        ("box.local", True),
        ("", True),
        ("ollama.example.com", False),
        ("8.8.8.8", False),
        ("local.example", False),
    ],
)
def test_a_server_on_loopback_minds_the_host_header(host: str, allowed: bool) -> None:
    assert host_allowed(host) is allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("", True),
        ("http://localhost:3000", True),
        ("app://obsidian.md", True),
        ("null", False),
        ("https://example.com", False),
    ],
)
def test_a_foreign_origin_is_not_let_in(origin: str, allowed: bool) -> None:
    assert origin_allowed(origin) is allowed


# Faults and words.


def test_a_fault_set_by_name_leaves_the_others() -> None:
    faults = merged(Faults(deadlock=True), {"answer": "html", "paths": ["/api/ps"]})
    assert faults == Faults(deadlock=True, answer="html", paths=("/api/ps",))


@pytest.mark.parametrize(
    "document",
    [
        {"anwser": "html"},
        {"answer": "sulks"},
        {"deadlock": 1},
        {"ps_delay_s": -1},
        {"ps_delay_s": "2"},
        {"ps_status": 20},
        {"refuse_after": True},
        {"stream_error_after": -1},
        {"paths": "/api/ps"},
        {"ps_body_base64": "***"},
        {"ps_headers": [1]},
    ],
)
def test_a_fault_that_cannot_be_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is not a fault|cannot be"):
        merged(Faults(), document)


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GB", 24 * GB), ("24", 24 * GB), ("1.2 gb", 1_200_000_000), ("500MB", 500_000_000)],
)
def test_a_size_is_decimal_and_gb_where_nothing_is_said(text: str, size: int) -> None:
    assert size_bytes(text, "--model") == size


def words(**changes: Any) -> NodeWords:
    return NodeWords(**{"vram_gb": "90", "models": ["llama3=5GB"], **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vram_gb": "much"}, "--vram-gb"),
        ({"vram_gb": "-4"}, "--vram-gb"),
        ({"vram_gb": "4000000"}, "--vram-gb"),
        ({"models": ["llama3"]}, "NAME=SIZE"),
        ({"models": ["llama3=big"]}, "--model"),
        ({"models": ["llama3=0"]}, "--model"),
        ({"models": ["lla ma3=5"]}, "model name"),
        ({"models": ["a=1", "A:latest=2"]}, "twice"),
        ({"embeddings": ["llama3=1"]}, "--embedding"),
        ({"aliases": ["copy=other"]}, "--alias"),
        ({"aliases": ["copy"]}, "NAME=OTHER"),
        ({"loaded": ["other"]}, "--loaded"),
        ({"profile": "newest"}, "--profile"),
        ({"load_seconds": -1.0}, "--load-seconds"),
        ({"load_seconds": float("nan")}, "--load-seconds"),
        ({"count": 0}, "--count"),
    ],
)
def test_a_word_that_cannot_be_is_one_sentence_that_names_it(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        specs_of(words(**changes))
    assert said in caught.value.sentence
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


def test_an_alias_has_the_weights_and_the_digest_of_its_model() -> None:
    (spec,) = specs_of(words(aliases=["copy=LLAMA3"], loaded=["copy"]))
    model, alias = spec.models
    assert alias.shown_digest == model.shown_digest
    assert alias.weights_key == model.weights_key
    assert (model.loaded, alias.loaded) == (False, True)


def test_so_many_nodes_as_were_asked_for() -> None:
    assert [spec.name for spec in specs_of(words(count=3))] == ["sim-0", "sim-1", "sim-2"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SimModel("a b", GB),
        lambda: SimModel("a", 0),
        lambda: SimModel("a", GB, keep_alive="5"),
        lambda: SimSpec(vram_bytes=-1),
        lambda: SimSpec(models=(SimModel("a", GB), SimModel("a:latest", GB))),
        lambda: SimSpec(profile="?"),
        lambda: SimSpec(max_queue=0),
        lambda: SimSpec(num_parallel=0),
    ],
)
def test_a_node_that_cannot_be_is_not_made(make: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        make()
