"""`lifecycle webhook send` reports mistakes in one line and with an exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lifecycle.cli import main
from lifecycle.cli.app import parse
from lifecycle.cli.webhook import SCHEMES

if TYPE_CHECKING:
    from pathlib import Path

URL = "http://127.0.0.1:1/deploy"
PUBLIC = "whpk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk="


def test_every_scheme_can_be_chosen() -> None:
    for scheme in SCHEMES:
        assert vars(parse(["webhook", "send", URL, "--scheme", scheme, "--secret-env", "S"]))["scheme"] == scheme


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (
        [],
        ["send"],
        ["send", URL, "--scheme", "github"],
        ["send", URL, "--secret-env", "S"],
        ["send", URL, "--scheme", "md5", "--secret-env", "S"],
        ["send", URL, "--scheme", "github", "--secret-env", "not a name"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["webhook", *argv])
        assert stopped.value.code == 2
        assert "usage: lifecycle webhook" in capsys.readouterr().err


def test_impossible_requests_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NOTHING", raising=False)
    for name, value in {"S": "hush", "EMPTY": "", "PUBLIC": PUBLIC, "LINE": "hush\n", "TEXT": "not base64!"}.items():
        monkeypatch.setenv(name, value)
    cases: list[tuple[int, str, list[str]]] = [
        (3, "the environment variable NOTHING (--secret-env) is not set", [URL, "github", "NOTHING"]),
        (3, "the environment variable EMPTY (--secret-env) is empty", [URL, "github", "EMPTY"]),
        (2, "is not an HTTP URL; use one such as", ["127.0.0.1:1/deploy", "github", "S"]),
        (2, "is not an HTTP URL; use one such as", ["ftp://127.0.0.1/", "github", "S"]),
        (2, "is not a valid URL: Port", ["http://127.0.0.1:99999/", "github", "S"]),
        (2, "is not a valid URL: Invalid IPv6", ["http://[::1/", "github", "S"]),
        (2, "contains a user name", ["http://me:pass@127.0.0.1/", "github", "S"]),
        (2, "cannot be read: No such file", [URL, "github", "S", "--data", f"@{tmp_path / 'missing'}"]),
        (2, "cannot be read: Is a directory", [URL, "github", "S", "--data", f"@{tmp_path}"]),
        (2, "--data @: cannot be read", [URL, "github", "S", "--data", "@"]),
        (2, "requires --header NAME", [URL, "hmac", "S"]),
        (2, "not a valid header name", [URL, "hmac", "S", "--header", "X Sig"]),
        (2, "cannot be used for an HMAC", [URL, "hmac", "S", "--header", "X-Sig", "--algorithm", "sha257"]),
        (2, "--header applies only to --scheme hmac", [URL, "github", "S", "--header", "X-Sig"]),
        (2, "the secret in PUBLIC: whpk_… is a public key", [URL, "standard", "PUBLIC"]),
        (2, "the secret in TEXT: the secret is not base64", [URL, "standard", "TEXT"]),
        (2, "the secret in LINE: a token that", [URL, "gitlab", "LINE"]),
        (2, "takes no command", [URL, "github", "S", "--", "true"]),
        (1, "URL can't contain control characters", ["http://a b/", "github", "S"]),
    ]
    for status, said, (url, scheme, variable, *rest) in cases:
        assert main(["webhook", "send", url, "--scheme", scheme, "--secret-env", variable, *rest]) == status, said
        error = capsys.readouterr().err
        assert said in error
        assert "hush" not in error
        assert error.count("\n") == 1
