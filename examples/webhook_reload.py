r"""Reload a configuration when a signed webhook or SIGHUP requests it. An invalid configuration changes nothing.

Try it::

    echo '{"colour": "blue"}' > config.json
    WEBHOOK_SECRET=hush PORT=9000 python examples/webhook_reload.py config.json

and, in another terminal, after editing the file::

    curl -d please http://127.0.0.1:9000/reload \
         -H "X-Hub-Signature-256: sha256=$(printf please | openssl dgst -sha256 -hmac hush -r | cut -d' ' -f1)"
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from lifecycle import GitHub, ReloadHandler, Router, WebhookSource, run


class Settings:
    """The settings in the file. A reload replaces all of them or none."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.take(self.read())

    def read(self) -> dict[str, Any]:
        """Prepare: parse and check the file, and change nothing."""
        values = json.loads(self.file.read_text(encoding="utf-8"))
        if not isinstance(values, dict) or "colour" not in values:
            raise ValueError(f"{self.file}: {values!r} has no colour; give an object with the key 'colour'")
        return values

    def take(self, values: dict[str, Any]) -> None:
        """Commit the new settings in one step."""
        self.values = values
        print("colour:", values["colour"], flush=True)


def main(file: str) -> None:
    """Serve until Ctrl+C."""
    settings, router = Settings(Path(file)), Router()
    port, secret = int(os.environ.get("PORT", "9000")), os.environ["WEBHOOK_SECRET"]
    router.add_source(WebhookSource(port=port, verify=GitHub(secret)))
    reload = ReloadHandler(settings.read, settings.take)
    router.handle("webhook/reload", reload)
    router.handle("lifecycle/reload", reload)  # SIGHUP, if the program has no terminal
    run(router)


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["config.json"])
