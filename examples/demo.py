"""`make demo`: the interactive hot reloader on examples/site, with a signed webhook and a dashboard.

The demo prints the command line of `lifecycle watch` and some things to try. It runs that command next to a
`Dashboard`.
"""

import os
import secrets
import shutil
import socket
import sys
from hashlib import sha256
from hmac import digest
from pathlib import Path

from lifecycle.cli import main
from lifecycle.observe import Dashboard

SITE = Path(os.path.relpath(Path(__file__).with_name("site")))
BODY = "please"

TEXT = """\
$ {line}

  open   http://127.0.0.1:{port}/
  edit   {site}/page.html, and reload the page; break {site}/app.py, and the old page stays up
  send   {curl}
  type   suspend, resume, reload, restart, status, help, quit; Tab completes
  press  Ctrl+C to suspend, again to quit
  watch  the dashboard, whose address follows
  ask    {lifecycle} ctl status --watch    (in another terminal; or tail, explain file/modified, attach, stop)
"""


def free_port(wanted: int) -> int:
    """Return the port ``wanted``, or any free port if that one is in use."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no port is free on 127.0.0.1")


def installed(name: str) -> str:
    """Return what to type for a program of this environment: its name, or its path if the shell would not find it."""
    program = Path(sys.executable).with_name(name)
    return name if shutil.which(name) == str(program) else min(os.path.relpath(program), str(program), key=len)


def signature(secret: str) -> str:
    """Return a shell command that computes the body's signature, or the signature itself if openssl is missing."""
    if shutil.which("openssl"):
        return f"$(printf %s {BODY} | openssl dgst -sha256 -hmac {secret} -r | cut -d' ' -f1)"
    return digest(secret.encode(), BODY.encode(), sha256).hex()


def demo() -> int:
    """Print some things to try, and watch the site."""
    port, hook, secret = free_port(8000), free_port(9000), secrets.token_hex(8)
    os.environ |= {"PORT": str(port), "WEBHOOK_SECRET": secret}
    address = f"127.0.0.1:{hook}"
    options = ["watch", "--prompt", str(SITE), "--webhook", address, "--secret-env", "WEBHOOK_SECRET"]
    command = [sys.executable, str(SITE / "app.py")]
    curl = f'curl -d {BODY} -H "X-Hub-Signature-256: sha256={signature(secret)}" http://{address}/reload'
    lifecycle = installed("lifecycle")
    variables = f"PORT={port} WEBHOOK_SECRET={secret}"
    line = f"{variables} {lifecycle} {' '.join(options)} -- {installed(Path(sys.executable).name)} {command[-1]}"
    print(TEXT.format(line=line, lifecycle=lifecycle, port=port, site=SITE, curl=curl), flush=True)
    return main([*options, *sys.argv[1:], "--", *command], beside=[Dashboard()])


if __name__ == "__main__":
    sys.exit(demo())
