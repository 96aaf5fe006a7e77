"""Settings: who is heard over whom, what is not understood, and what is shown."""

import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.model.errors import Invalid
from penstock.model.urls import HIDDEN, without_password
from penstock.settings import Limits, Settings, description, keys, load, read_tokens, show

HASH = "sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str, name: str = "penstock.toml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_said_is_the_defaults() -> None:
    loaded = load()
    assert loaded.settings == Settings()
    assert loaded.sources == {}
    assert loaded.settings.host == "127.0.0.1"


def test_flags_are_heard_over_variables_over_the_file_over_defaults() -> None:
    written('host = "::1"\nport = 1\nhttp_port = 1\n[limits]\nconnections = 1\nin_flight = 1\n')
    environ = {
        "PENSTOCK_PORT": "2",
        "PENSTOCK_HTTP_PORT": "2",
        "PENSTOCK_LIMITS_IN_FLIGHT": "2",
        "PENSTOCK_NO_HTTP": "true",
        "HOME": "/root",
    }
    loaded = load(environ=environ, flags={"port": 3, "host": None})
    found = loaded.settings
    assert (found.port, found.http_port, found.host) == (3, 2, "::1")
    assert found.no_http is True
    assert found.limits == Limits(connections=1, in_flight=2)
    assert loaded.sources == {
        "host": "penstock.toml",
        "port": "--port",
        "http_port": "PENSTOCK_HTTP_PORT",
        "limits.connections": "penstock.toml",
        "limits.in_flight": "PENSTOCK_LIMITS_IN_FLIGHT",
        "no_http": "PENSTOCK_NO_HTTP",
    }


def test_a_file_that_is_named_must_be_there() -> None:
    other = written("port = 7\n", "other.toml")
    written("port = 8\n")
    assert load().settings.port == 8
    assert load(file=other).settings.port == 7
    assert load(environ={"PENSTOCK_CONFIG": "other.toml"}).settings.port == 7
    with pytest.raises(Invalid, match=r"missing\.toml cannot be read"):
        load(file=Path("missing.toml"))


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("prot = 1", "prot", "port"),
        ("[limits]\nconection = 1", "limits.conection", "limits.connections"),
        ("[limit]\nconnections = 1", "limit.connections", "limits.connections"),
        ('log_fromat = "json"', "log_fromat", "log_format"),
    ],
)
def test_an_unknown_key_of_the_file_is_named_with_the_nearest(
    text: str, key: str, nearest: str
) -> None:
    with pytest.raises(Invalid, match=f"{nearest!r}.*penstock.toml") as caught:
        load(file=written(text))
    assert caught.value.field == key


def test_an_unknown_variable_is_named_with_the_nearest() -> None:
    with pytest.raises(Invalid, match="'PENSTOCK_PORT'") as caught:
        load(environ={"PENSTOCK_PROT": "1"})
    assert caught.value.field == "PENSTOCK_PROT"
    load(environ={"PENSTOCK_TOKEN": "pst_of_a_client", "PENSTOCKING": "1"})


def test_a_key_that_resembles_none_is_still_refused() -> None:
    with pytest.raises(Invalid, match="no such setting") as caught:
        load(flags={"zzzzzzzz": 1})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "environ", "text", "field"),
    [
        ({"port": 70_000}, {}, "", "port"),
        ({}, {"PENSTOCK_PORT": "many"}, "", "port"),
        ({}, {}, 'port = "6789"', "port"),
        ({"log_format": "xml"}, {}, "", "log_format"),
        ({}, {}, "[limits]\nidle_s = -1", "limits.idle_s"),
        ({}, {"PENSTOCK_TOKENS": "x"}, "", "tokens"),
        ({}, {}, '[[tokens]]\nname = "a"', "tokens"),
        ({}, {}, f'[[tokens]]\nname = "a"\nhash = "{HASH}"\nscope = ["push"]', "tokens"),
        ({}, {}, f'[[tokens]]\nname = "a"\nhash = "{HASH}"\nexpires_at = 2030-01-01', "tokens"),
        ({}, {}, "port = ", "config"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(
    flags: dict[str, object], environ: dict[str, str], text: str, field: str
) -> None:
    written(text)
    with pytest.raises(Invalid) as caught:
        load(environ=environ, flags=flags)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("flags", "environ", "text", "told"),
    [
        (
            {"port": 70_000},
            {},
            "",
            "port: 70000 is not a whole number from 0 to 65535 (said by --port)",
        ),
        (
            {},
            {"PENSTOCK_PORT": "many"},
            "",
            "port: 'many' is not a whole number from 0 to 65535 (said by PENSTOCK_PORT)",
        ),
        (
            {},
            {"PENSTOCK_CRON": "maybe"},
            "",
            "cron: 'maybe' is not true or false (said by PENSTOCK_CRON)",
        ),
        (
            {},
            {},
            "port = 1.5",
            "port: 1.5 is not a whole number from 0 to 65535 (said by penstock.toml)",
        ),
        ({}, {}, "cron = 1", "cron: 1 is not true or false (said by penstock.toml)"),
        ({}, {}, "url = true", "url: true is not text (said by penstock.toml)"),
        (
            {},
            {},
            "[limits]\nidle_s = -1",
            "limits.idle_s: -1 is not a number of at least 0 (said by penstock.toml)",
        ),
        (
            {"events_seal_s": 0},
            {},
            "",
            "events_seal_s: 0 is not a number above 0 (said by --events-seal-s)",
        ),
        (
            {"log_level": "loud"},
            {},
            "",
            "log_level: 'loud' is not one of debug, info, warning, error (said by --log-level)",
        ),
        (
            {},
            {},
            "tokens = 3",
            "tokens: 3 is not a list: each begins with [[tokens]] (said by penstock.toml)",
        ),
        (
            {},
            {},
            "[tokens]",
            "tokens: a table is not a list: each begins with [[tokens]] (said by penstock.toml)",
        ),
        (
            {},
            {},
            '[[tokens]]\nname = "a"',
            "tokens: token 1 has no hash (said by penstock.toml)",
        ),
        (
            {},
            {},
            f'[[tokens]]\nname = "a"\nhash = "{HASH}"\n[[tokens]]\nname = ""\nhash = "x"',
            "tokens: token 2: name: '' is not text of at least 1 character (said by penstock.toml)",
        ),
        (
            {},
            {},
            '[[tokens]]\nname = "a"\nhash = ["pst_secret"]',
            "tokens: token 1: hash: *** is not text (said by penstock.toml)",
        ),
        (
            {},
            {},
            f'[[tokens]]\nname = "a"\nhash = "{HASH}"\nscopes = "push"',
            "tokens: token 1: scopes: 'push' is not a list (said by penstock.toml)",
        ),
        (
            {},
            {},
            f'[[tokens]]\nname = "a"\nhash = "{HASH}"\nscopes = ["push", 3]',
            "tokens: token 1: scopes: 3 is not text (said by penstock.toml)",
        ),
        (
            {},
            {},
            f'[[tokens]]\nname = "a"\nhash = "{HASH}"\nexpires_at = 2030-01-01',
            "tokens: token 1: expires_at: 2030-01-01 is not an instant with its offset, like"
            " 2030-01-31T08:00:00+01:00 (said by penstock.toml)",
        ),
        (
            {},
            {},
            f'[[tokens]]\nname = "a"\nhash = "{HASH}"\nscops = ["push"]',
            "tokens: token 1: there is no 'scops' in a token; did you mean 'scopes'?"
            " (said by penstock.toml)",
        ),
    ],
)
def test_a_wrong_value_is_told_with_what_is_allowed_and_who_said_it(
    flags: dict[str, object], environ: dict[str, str], text: str, told: str
) -> None:
    written(text)
    with pytest.raises(Invalid) as caught:
        load(environ=environ, flags=flags)
    assert str(caught.value) == told


def test_a_file_that_cannot_be_read_is_told_without_the_system_s_numbers(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        load(file=Path("missing.toml"))
    assert str(caught.value) == "config: missing.toml cannot be read: No such file or directory"


def test_a_wrong_word_is_answered_with_the_right_ones() -> None:
    with pytest.raises(Invalid, match="'xml' is not one of text, json"):
        load(flags={"log_format": "xml"})
    with pytest.raises(Invalid, match="no 'scope' in a token; did you mean 'scopes'"):
        load(file=written(f'[[tokens]]\nname = "a"\nhash = "{HASH}"\nscope = []'))


def test_tokens_are_read_from_the_file_and_from_one_of_their_own() -> None:
    text = (
        f'[[tokens]]\nname = "web"\nhash = "{HASH}"\ntenant = "acme"\nscopes = ["push"]\n'
        "expires_at = 2030-01-01T00:00:00Z\n"
    )
    (token,) = load(file=written(text)).settings.tokens
    assert (token.name, token.hash, token.tenant, token.scopes) == ("web", HASH, "acme", ("push",))
    assert token.expires_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert read_tokens(written(text, "tokens.toml")) == (token,)
    with pytest.raises(Invalid, match="only"):
        read_tokens(written("port = 1", "tokens.toml"))


def test_what_is_shown_is_toml_that_says_the_same_without_secrets() -> None:
    written(
        'url = "postgres://me:hunter2@db/jobs"\n[limits]\nidle_s = 2.5\n'
        f'[[tokens]]\nname = "web"\nhash = "{HASH}"\n'
    )
    loaded = load(flags={"port": 0})
    text = show(loaded)
    assert "hunter2" not in text
    assert HASH not in text
    said = tomllib.loads(text)
    assert said["url"] == f"postgres://me:{HIDDEN}@db/jobs"
    assert (said["port"], said["limits"]["idle_s"]) == (0, 2.5)
    assert said["tokens"] == [
        {"name": "web", "hash": HIDDEN, "tenant": "*", "scopes": ["push", "claim", "admin"]}
    ]
    assert "port = 0  # --port" in text
    assert "idle_s = 2.5  # penstock.toml" in text
    assert 'host = "127.0.0.1"  # default' in text


def test_what_is_shown_can_be_read_back() -> None:
    shown = show(load())
    assert load(file=written(shown)).settings == Settings()


def test_every_setting_says_what_it_is_for() -> None:
    assert len(keys()) > 15
    for key, hint in keys().items():
        assert len(description(hint)) > 5, key


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    assert without_password("sqlite:///a%20b.db?mode=ro") == "sqlite:///a%20b.db?mode=ro"
