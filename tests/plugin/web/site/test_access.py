"""Who is let in: without a token whoever asks this machine by its own name, with one whoever has it."""

from __future__ import annotations

import base64
import hmac
from pathlib import Path

import pytest
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.settings.config import UI_TOKEN
from ackwise.plugin.web.oncallsite import Access, is_own_address, token_of

SECRET = "f3a1" * 8


def basic(text: bytes) -> str:
    return f"Basic {base64.b64encode(text).decode()}"


@each("host", ["localhost", "localhost:9400", "127.0.0.1", "127.0.0.1:80", "[::1]:9400", "LocalHost:1"])
def test_without_a_token_whoever_asks_for_this_machine_is_let_in(host: str) -> None:
    assert Access().refusal(host, "") is None


@each(
    "host",
    [
        "", "evil.example", "evil.example:9400", "localhost.evil.example", "127.0.0.1.evil.example", "localhost:9400@evil.example",
        "10.0.0.7",
        "localhost\n", "127.0.0.1:", "localhost:٤", "[::1", "0.0.0.0:9400",
    ],
)  # fmt: skip
def test_a_name_that_somebody_else_had_resolved_to_this_machine_is_refused(host: str) -> None:
    refused = Access().refusal(host, "")
    assert refused is not None
    assert refused.status == 403
    assert "http://localhost" in refused.sentence


@each("given", [f"Bearer {SECRET}", f"bearer {SECRET} ", basic(f":{SECRET}".encode()), basic(f"anybody:{SECRET}".encode())])
def test_whoever_has_the_token_is_let_in_by_any_name(given: str) -> None:
    assert Access(SECRET).refusal("ops.example:9400", given) is None


@each(
    "given",
    [
        "", SECRET, "Bearer", "Bearer ", f"Bearer {SECRET[:-1]}", f"Bearer {SECRET}0", f"Digest {SECRET}", basic(SECRET.encode()),
        basic(f"{SECRET}:".encode()), basic(b"\xff:\xff"), "Basic !!!", "Basic " + "A" * 5, "Bearer \udcff", basic(b""), "Basic \udcff",
    ],
)  # fmt: skip
def test_nobody_else_is_let_in_not_even_on_this_machine(given: str) -> None:
    refused = Access(SECRET).refusal("localhost", given)
    assert refused is not None
    assert refused.status == 401
    assert SECRET not in refused.sentence


def test_the_token_is_compared_in_a_time_that_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert Access(SECRET).refusal("localhost", f"Bearer {SECRET}") is not None
    assert compared == [(SECRET.encode(), SECRET.encode())]


def test_a_token_comes_from_the_file_or_else_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    assert token_of(file, {UI_TOKEN: "another" * 4}) == SECRET
    assert token_of(None, {UI_TOKEN: SECRET}) == SECRET
    assert token_of(None, {}) is None


@each("text", ["", "\n", "short", "two words of some length", "a" * 1025, "ö" * 20, f"{SECRET}\n{SECRET}"])
def test_a_token_that_can_be_guessed_or_not_be_typed_is_refused_and_never_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    given: list[tuple[Path | None, dict[str, str]]] = [(file, {}), (None, {UI_TOKEN: text})]
    for where, environment in given:
        with pytest.raises(ConfigurationError, match="16 to 1024 printable ASCII characters") as refused:
            token_of(where, environment)
        assert not text.strip() or text.strip() not in str(refused.value)


def test_a_file_that_can_not_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe" * 20)
    for file, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory"), (tmp_path / "bytes", "it is not text")):
        with pytest.raises(ConfigurationError, match=reason):
            token_of(file, {})


@each(
    ("address", "own"),
    [("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("fe80::1%eth0", False)],
)  # fmt: skip
def test_only_a_loopback_address_is_this_machine_s_own(address: str, own: bool) -> None:
    assert is_own_address(address) is own
