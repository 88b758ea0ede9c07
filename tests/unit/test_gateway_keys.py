"""API keys: what may be written, who is told apart, and how they change under a running gateway."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from structlog.testing import capture_logs

from aibs.errors import ConfigurationError
from aibs.gateway import keys as keys_module
from aibs.gateway.context import Caller
from aibs.gateway.keys import KeyRing
from aibs.settings import examine, load
from aibs.settings.api_keys import KEYS_MAX, InvalidKeys, KeySource, parse_keys, read_keys
from tests.integration.in_loop import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _logs_as_they_come() -> None:
    """Whatever another test configured."""
    structlog.reset_defaults()


SHA = hashlib.sha256(b"Zqsecret").hexdigest()


def _file(tmp_path: Path, text: str, mode: int = 0o600, name: str = "keys") -> Path:
    path = tmp_path / name
    path.write_text(text)
    path.chmod(mode)
    return path


def _ring(text: str, directory: Path | None = None, **more: Any) -> KeyRing:
    return KeyRing(read_keys(text, directory) if directory else KeySource(parse_keys(text)), **more)


# --- what may be written


def test_a_key_is_kept_as_its_digest_only() -> None:
    (key,) = parse_keys("ci:Zqsecret:low")
    assert (key.name, key.digest.hex(), key.max_class) == ("ci", SHA, "low")
    assert "Zqsecret" not in repr(key)


def test_a_digest_stands_for_its_key() -> None:
    assert parse_keys(f"ci:sha256:{SHA}") == parse_keys("ci:Zqsecret")
    assert parse_keys(f"ci:sha256:{SHA.upper()}:low") == parse_keys("ci:Zqsecret:low")


def test_a_file_holds_one_a_line_with_comments(tmp_path: Path) -> None:
    path = _file(
        tmp_path, f"\ufeff# ours\n\nci:Zqfirst:low   # the builds\n  web:sha256:{SHA}\r\na:b#c\n"
    )
    source = read_keys(f"@{path.name}", tmp_path)
    assert [key.name for key in source.keys] == ["ci", "web", "a"]
    assert source.keys[1].digest.hex() == SHA
    assert source.keys[2].digest == hashlib.sha256(b"b#c").digest()
    assert (source.path, source.warnings) == (path, ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ci", "line 2 something that is not name:key"),
        ("ci:", "line 2 something that is not name:key"),
        (":Zqsecret", "line 2 something that is not name:key"),
        ("c i:Zqsecret", "line 2 something that is not name:key"),
        ("ci:Zqsecret:boss", "in line 2 a class other than high, normal or low"),
        ("ci:Zqsecret:low:x", "in line 2 a class other than high, normal or low"),
        (f"ci:sha256:{SHA[1:]}", "in line 2 a sha256 that is not 64 hexadecimal digits"),
        (f":sha256:{SHA}", "as line 2 something that is not name:key"),
        ("ci:Zqsécret", "in line 2 a key with a character that no header can carry"),
        ("ci:Zq secret", "in line 2 a key with a character that no header can carry"),
        ("web:Zqsecret", "in line 2 the name of line 1"),
        ("ci:Zqother", "in line 2 the key of line 1"),
    ],
)
def test_a_wrong_line_is_named_and_its_key_is_not(text: str, problem: str, tmp_path: Path) -> None:
    path = _file(tmp_path, f"web:Zqother\n{text}\n")
    _, faults = examine({"AIBS_API_KEYS": f"@{path}"}, None)
    (fault,) = faults
    assert fault.variable == "AIBS_API_KEYS"
    assert problem in fault.problem
    assert str(path) in fault.problem or "…" in fault.problem
    assert fault.mend
    assert "Zq" not in str(fault)


def test_a_file_of_nobody_is_no_open_door(tmp_path: Path) -> None:
    for name, text, mode in (
        ("empty", "# none yet\n", 0o600),
        ("readable", "ci:Zqsecret\n", 0o644),
        ("writable", f"ci:sha256:{SHA}\n", 0o602),
        ("binary", "", 0o600),
        ("huge", f"ci:Zqsecret\n{'#' * (1 << 20)}\n", 0o600),
    ):
        path = _file(tmp_path, text, mode, name)
        if name == "binary":
            path.write_bytes(b"ci:\xff\xfe")
        with pytest.raises(ConfigurationError) as raised:
            load({"AIBS_API_KEYS": f"@{path}"}, None)
        assert str(raised.value).startswith("AIBS_API_KEYS names "), name
        assert "Zq" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load({"AIBS_API_KEYS": f"@{tmp_path}/none"}, None)
    with pytest.raises(InvalidKeys, match="home directory"):
        read_keys("@~nobodyhere/keys", tmp_path)


def test_digests_that_others_may_read_are_told_and_taken(tmp_path: Path) -> None:
    path = _file(tmp_path, f"ci:sha256:{SHA}\n", 0o644)
    found = load({"AIBS_API_KEYS": f"@{path}"}, None)
    assert (
        found.warnings
        == (f"AIBS_API_KEYS names '{path}', which others may read: it holds only digests.",)
        or "others may read" in found.warnings[0]
    )
    assert [key.name for key in found.key_source().keys] == ["ci"]


def test_the_file_lies_beside_the_env_file(tmp_path: Path) -> None:
    _file(tmp_path, "ci:Zqsecret\n")
    env = tmp_path / ".env"
    env.write_text("AIBS_API_KEYS=@keys\n")
    assert load({}, env).key_source().path == tmp_path / "keys"


def test_keys_are_bounded() -> None:
    with pytest.raises(InvalidKeys, match=f"more than {KEYS_MAX} keys"):
        parse_keys(",".join(f"n{n}:k{n}" for n in range(KEYS_MAX + 1)))


# --- who is told apart


def test_a_key_is_known_by_whichever_header_it_comes() -> None:
    ring = _ring("ci:Zqsecret:low,web:Zqother")
    assert ring.required
    ci, web = Caller("ci", "low"), Caller("web", "high")
    for value in (b"Bearer Zqsecret", b"bearer  Zqsecret ", b"BEARER Zqsecret", b"Zqsecret"):
        assert ring.caller_of([value]) == ci, value
    assert ring.caller_of([b"Bearer none", b"Zqother"]) == web


def test_what_is_no_key_is_nobody() -> None:
    ring = _ring("ci:Zqsecret,web:Zqother")
    for value in (b"", b"Bearer", b"Bearer ", b"Zqsecre", b"Zqsecrets", b"Basic Zqsecret", b"ci"):
        assert ring.caller_of([value]) is None, value
    assert ring.caller_of([]) is None
    # The digest itself opens nothing.
    assert ring.caller_of([SHA.encode(), bytes.fromhex(SHA)]) is None
    assert ring.caller_of([b"x"] * 10_000 + [b"Zqsecret"]) is None


def test_every_digest_is_compared_whichever_key_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def counting(one: bytes, other: bytes) -> bool:
        nonlocal compared
        compared += 1
        return hmac.compare_digest(one, other)

    class Counting:
        compare_digest = staticmethod(counting)

    monkeypatch.setattr(keys_module, "hmac", Counting)
    ring = _ring("a:k1,b:k2,c:k3")
    for value in (b"k1", b"k3", b"none"):
        compared = 0
        ring.caller_of([value])
        assert compared == 3, value


def test_without_keys_none_is_required() -> None:
    ring = KeyRing(KeySource())
    assert not ring.required
    assert ring.caller_of([b"Bearer x"]) is None
    assert not ring.reload()


# --- how they change


class Quick:
    """A clock whose sleeps are a turn of the loop; counts them."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def boottime_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def test_a_changed_file_is_in_force_without_a_restart(tmp_path: Path) -> None:
    path = _file(tmp_path, "ci:Zqold\n")
    clock = Quick()
    ring = _ring("@keys", tmp_path, clock=clock)

    async def run() -> None:
        watching = asyncio.create_task(ring.watch())
        try:
            async with asyncio.timeout(10):
                # A rename, as a careful operator replaces a file.
                new = _file(tmp_path, "ci:Zqnew\n", name="new")
                os.replace(new, path)  # noqa: PTH105 - the call that is meant
                await until(lambda: ring.caller_of([b"Zqnew"]) is not None)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(run())
    assert ring.caller_of([b"Zqold"]) is None
    assert set(clock.slept) == {keys_module.LOOK_EVERY_S}


def test_a_broken_file_keeps_the_old_keys_and_says_so_once(tmp_path: Path) -> None:
    path = _file(tmp_path, "ci:Zqold:low\n")

    async def run() -> None:
        watching = asyncio.create_task(ring.watch())
        _file(tmp_path, "ci:Zqnew\nci:Zqother\n")
        async with asyncio.timeout(10):
            await until(lambda: len(lines) == 1)
            turns = len(clock.slept)
            await until(lambda: len(clock.slept) > turns + 20)
            path.unlink()
            await until(lambda: len(lines) == 2)
            turns = len(clock.slept)
            await until(lambda: len(clock.slept) > turns + 20)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    with capture_logs() as lines:
        clock = Quick()
        ring = _ring("@keys", tmp_path, clock=clock)
        asyncio.run(run())
    assert ring.caller_of([b"Zqold"]) == Caller("ci", "low")
    assert [line["event"] for line in lines] == ["api_keys_kept"] * 2
    assert "line 2 the name of line 1" in lines[0]["why"]
    assert "No such file" in lines[1]["why"]
    assert "Zq" not in str(lines)


def test_a_signal_reads_the_file_even_if_it_looks_the_same(tmp_path: Path) -> None:
    path = _file(tmp_path, "ci:Zqold\n")
    with capture_logs() as lines:
        ring = _ring("@keys", tmp_path)
        before = path.stat()
        path.write_text("we:Zqnew\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert ring.reload()
    assert ring.caller_of([b"Zqnew"]) == Caller("we", "high")
    assert (lines[0]["added"], lines[0]["removed"]) == (["we"], ["ci"])
