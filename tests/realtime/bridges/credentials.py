"""Credentials as ``nsc`` creates them: an operator, an account and a user, as settings and a credentials file."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import nkeys  # type: ignore[import-untyped]  # nkeys has no types

__all__ = ["credentials"]

UNLIMITED = dict.fromkeys(("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1) | {"wildcards": True}
STREAMS = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)


def credentials() -> tuple[str, str]:
    """Return the settings of a server that accepts only this user, and the text of the credentials file."""
    operator, user = _key(nkeys.PREFIX_BYTE_OPERATOR), _key(nkeys.PREFIX_BYTE_USER)
    account, system = _key(nkeys.PREFIX_BYTE_ACCOUNT), _key(nkeys.PREFIX_BYTE_ACCOUNT)
    accounts = {
        _name(account): _token(operator, account, {"type": "account", "limits": UNLIMITED | STREAMS}),
        _name(system): _token(operator, system, {"type": "account", "limits": UNLIMITED}),
    }
    resolved = "\n".join(f'{name}: "{token}"' for name, token in accounts.items())
    settings = (
        f'operator: "{_token(operator, operator, {"type": "operator"})}"\nsystem_account: {_name(system)}\n'
        f"resolver: MEMORY\nresolver_preload: {{ {resolved} }}"
    )
    token = _token(account, user, {"type": "user", "subs": -1, "data": -1, "payload": -1})
    return settings, (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )


def _key(prefix: int) -> Any:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


def _name(key: Any) -> str:
    return str(key.public_key.decode())


def _token(issuer: Any, subject: Any, claims: dict[str, Any]) -> str:
    whole = {
        "jti": _name(subject),
        "iat": 1_700_000_000,
        "iss": _name(issuer),
        "sub": _name(subject),
        "name": claims["type"],
        "nats": {**claims, "version": 2},
    }
    text = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(whole)}"
    return f"{text}.{_base64(issuer.sign(text.encode()))}"


def _part(value: object) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
