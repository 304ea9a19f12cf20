"""Masking of secrets: secret names, and the secret parts of a text."""

from __future__ import annotations

import json

import pytest

from lifecycle._masking import error_masked, is_secret, masked, masked_values

SECRET_NAMES = [
    "password",
    "passwd",
    "PGPASSWORD",
    "dbPassword",
    "pwd",
    "passphrase",
    "DB_PASS",
    "secret",
    "token",
    "AuthToken",
    "credential",
    "Authorization",
    "Set-Cookie",
    "session",
    "sessionId",
    "X-Hub-Signature-256",
    "sig",
    "otp",
    "api_key",
    "apiKey",
    "X-API-Key",
    "private_key",
    "aws_access_key_id",
    "HTTPAuth",
    "oauth2",
]
OTHER_NAMES = [
    "author",
    "authority",
    "keyboard",
    "monkey",
    "tokenizer",
    "compass",
    "key",
    "sessions",
    "secretary",
    "max_tokens",
    "total_tokens",
    "idempotency_key",
    "AuthError",
    "token_type",
    "session_timeout",
    "password_expired",
    "design",
    "topic",
    "",
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_names_that_only_resemble_those_of_secrets(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter2",
        "pwd = hunter2, passphrase: hunter2",
        '{"api_key": "hunter2"}',
        '"{\\"password\\": \\"hunter2\\"}"',
        "connect(user='x', password='hunter2 and \\'hunter2')",
        "tokens=['hunter2']",
        "Authorization: Bearer hunter2",
        "Authorization: Basic hunter2",
        "sent with Bearer hunter2",
        "Cookie: sid=1; other=hunter2",
        "run --password hunter2",
        "the password hunter2 is wrong",
        "the password 'hunter' is wrong",
        "postgres://bob:hunter2@db/shop",
        "postgres://bob:p@hunter2@db/shop",
        "https://hunter2hunter2hunter2@example.com/repo.git",
        "https://example.com/?x=1&key=hunter2",
        "api key: hunter2",
        "token: 'hunter2",
        "Command '['run', '--password', 'hunter2']' returned non-zero exit status 1.",
        '["run", "--api-key", "hunter2"]',
        "('password', 'hunter2')",
        "[(b'authorization', b'Basic hunter2')]",
        "{b'password': b'hunter2'}",
        "password=SecretStr('hunter2')",
        "passwords=['a', 'hunter2']",
        "credentials={'user': 'bob)', 'x': ['hunter2']}",
        '{"token": {"value": "hunter2"}}',
        "token: [a, hunter2",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\nhunter2\n-----END RSA PRIVATE KEY-----",
        "private_key=-----BEGIN PRIVATE KEY-----\nabc\nhunter2",
        '"{\\\\\\"password\\\\\\": \\\\\\"hunter2\\\\\\"}"',
        "'token=\\'a hunter2\\''",
        "password='''a hunter2'''",
        "user[password]=hunter2",
        "config['password'] = 'hunter2'",
        "Authorization: ApiKey hunter2",
        'Authorization: Digest username="bob", response="hunter2"',
        f"{'x' * 300}_password=hunter2",
    ],
)
def test_secrets_in_a_text_are_masked(text: str) -> None:
    assert "hunter" not in masked(text)
    assert "***" in masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "the token expired",
        'password authentication failed for user "bob"',
        "AuthError: nothing to see",
        "http://auth:8080/x",
        "author=bob keyboard: us",
        "mail to bob@example.com",
        "session 7 ended",
        "got token 3 of 5",
        'unexpected token ")" at 4',
        "max_tokens=512 prompt_tokens: 17",
        "cat: /etc/passwd: Permission denied",
        "secretary: bob",
        "fields ['password', 'email']",
        "",
    ],
)
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert masked(text) == text


def test_only_the_secret_is_masked() -> None:
    assert masked("host=db password=hunter2 dbname=shop") == "host=db password=*** dbname=shop"
    assert masked("x" * 5000 + " pwd=hunter2 and more") == "x" * 5000 + " pwd=*** and more"
    assert error_masked(ValueError("token=hunter2 is wrong")) == "ValueError: token=*** is wrong"
    assert error_masked(ValueError()) == "ValueError"
    assert masked("login(passwords=['a', 'b(']), user='bob')") == "login(passwords=***), user='bob')"
    assert masked('{"cookie": "a=1; b=2", "topic": "x"}') == '{"cookie": ***, "topic": "x"}'
    assert (
        masked("Command '['run', '--token', 'hunter2', '-v']' failed")
        == "Command '['run', '--token', ***, '-v']' failed"
    )
    key = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----"
    assert masked(f"cannot load {key}: expired") == "cannot load ***: expired"


@pytest.mark.parametrize(
    "part", ["token=[", "password ", "a.:", 'token=\\"', "-----BEGIN PRIVATE KEY", "://x:y…", "'--token',"]
)
def test_a_long_text_is_masked_in_linear_time(part: str) -> None:
    """A quadratic algorithm would exceed the test's time limit."""
    assert "***" in masked(part * (300_000 // len(part)) + " password=hunter2")


def test_values_are_masked_by_their_names_at_any_depth() -> None:
    given = {"user": "bob", "otp": 123456, "pwd": None, "keys": [{"api_key": ["a"]}, "token=abc", 1.5, True]}
    assert masked_values(given) == {
        "user": "bob",
        "otp": "***",
        "pwd": None,
        "keys": [{"api_key": "***"}, "token=***", 1.5, True],
    }
    assert masked_values("anything", "access_token") == "***"
    assert masked_values(["run", "--token", "abc", "-v"]) == ["run", "--token", "***", "-v"]


def test_values_that_are_nested_too_deep_are_left_out() -> None:
    value = json.loads('[{"a":' * 400 + "1" + "}]" * 400)
    assert "…" in json.dumps(masked_values(value), ensure_ascii=False)


def test_an_error_is_masked_and_cut_to_a_length() -> None:
    assert error_masked(ValueError("token=hunter2 is wrong")) == "ValueError: token=*** is wrong"
    assert error_masked(ValueError()) == "ValueError"
    assert len(error_masked(ValueError("x" * 10**6), 500)) < 600


def test_an_error_whose_message_fails_has_its_class() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert error_masked(Mute()) == "Mute: (its message cannot be read: RuntimeError)"
