"""Tokens: who is let in, and that a refusal gives nothing away."""

import logging
from datetime import UTC, datetime, timedelta
from hmac import compare_digest
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import Forbidden, Invalid, Unauthenticated
from penstock.protocol.access import ANYBODY, Grant, OpenToAll, Principal
from penstock.server import auth
from penstock.server.auth import (
    FirstOf,
    Tokens,
    authenticator_of,
    hash_of,
    new_token,
    tokens_of,
)
from penstock.settings import Settings, Token

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def kept(token: str, name: str = "web", **more: Any) -> Token:
    return Token(name=name, hash=hash_of(token), **more)


def test_a_token_is_recognised_and_never_twice_the_same() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert token.startswith("pst_")
        assert len(token) >= 4 + 43  # 256 bits
        assert token.isascii()


def test_a_token_stands_for_its_tenant_and_scopes() -> None:
    token, other = new_token(), new_token()
    tokens = Tokens(
        [kept(other, "other"), kept(token, tenant="acme", scopes=("push", "claim:emails-*"))]
    )
    assert not tokens.open_to_all
    principal = tokens.authenticate(token)
    assert principal == Principal("web", "acme", (Grant("push"), Grant("claim", "emails-*")))
    assert tokens.authenticate(other).tenant is None
    principal.require("claim", "emails-1")
    with pytest.raises(Forbidden):
        principal.require("claim", "reports")


def refusal(tokens: Any, said: str) -> tuple[str, str, str]:
    with pytest.raises(Unauthenticated) as caught:
        tokens.authenticate(said)
    return caught.value.message, caught.value.code, caught.value.field


def test_every_refusal_is_the_same() -> None:
    token, late = new_token(), new_token()
    records = [kept(token), kept(late, "late", expires_at=NOW)]
    known = Tokens(records, now=lambda: NOW)
    wrong = [
        "",  # missing
        "secret",  # malformed
        token[:-1],
        token + "=",
        token.upper(),
        new_token(),  # unknown
        late,  # expired
        "pst_\ud800\x00",
        "pst_" + "a" * 100_000,
        hash_of(token),  # what is kept is no key
    ]
    for tokens in (known, FirstOf([known]), FirstOf([known, known])):
        assert {refusal(tokens, said) for said in wrong} == {
            ("these credentials are not accepted", "unauthenticated", "")
        }


def test_a_token_is_good_until_it_expires() -> None:
    token = new_token()
    clock = [NOW - timedelta(seconds=1)]
    tokens = Tokens([kept(token, expires_at=NOW)], now=lambda: clock[0])
    assert tokens.authenticate(token).name == "web"
    clock[0] = NOW
    refusal(tokens, token)


@pytest.mark.parametrize("place", [0, 3, 9, None])
def test_every_hash_is_compared_wherever_the_right_one_stands(
    place: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [new_token() for _ in range(10)]
    tokens = Tokens([kept(token, f"t{n}") for n, token in enumerate(known)])
    compared: list[bytes] = []

    def counted(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return compare_digest(one, other)

    monkeypatch.setattr(auth, "compare_digest", counted)
    if place is None:
        refusal(tokens, new_token())
    else:
        assert tokens.authenticate(known[place]).name == f"t{place}"
    assert compared == [hash_of(token).encode() for token in known]


def test_authenticators_are_asked_in_order() -> None:
    first, second = new_token(), new_token()
    both = FirstOf([Tokens([kept(first, "first")]), Tokens([kept(second, "second")])])
    assert both.authenticate(first).name == "first"
    assert both.authenticate(second).name == "second"
    assert not both.open_to_all


def test_without_tokens_everybody_is_anybody() -> None:
    nobody_asks = authenticator_of([])
    assert isinstance(nobody_asks, OpenToAll)
    assert nobody_asks.open_to_all
    assert nobody_asks.authenticate("") is ANYBODY
    assert not authenticator_of([kept(new_token())]).open_to_all


@pytest.mark.parametrize(
    "wrong",
    [
        {"hash": "0" * 64},
        {"hash": "sha256:" + "0" * 63},
        {"hash": "sha256:" + "G" * 64},
        {"hash": "sha256:" + "0" * 64, "tenant": "a b"},
        {"hash": "sha256:" + "0" * 64, "scopes": ("write",)},
    ],
)
def test_a_wrong_record_is_refused_before_anybody_comes(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        Tokens([Token(name="web", **wrong)])


def test_two_tokens_of_one_name_are_refused() -> None:
    with pytest.raises(Invalid, match="two tokens are called 'web'"):
        Tokens([kept(new_token()), kept(new_token())])


def test_a_file_of_tokens_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = new_token()
    path = tmp_path / "tokens.toml"
    path.write_text(f'[[tokens]]\nname = "ops"\nhash = "{hash_of(token)}"\n')
    settings = Settings(tokens=(kept(new_token()),), tokens_file=str(path))
    path.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        tokens = tokens_of(settings)
        assert caplog.records == []
        path.chmod(0o644)
        assert tokens_of(settings) == tokens
    assert "mode 0644" in caplog.text
    assert token not in caplog.text
    assert authenticator_of(tokens).authenticate(token).name == "ops"
