"""Deploy repositories when GitHub sends a push: ``WEBHOOK_SECRET=hush python examples/deployer.py ./deploy.sh``.

The command receives the repository's name and the commit as arguments. When several pushes to main arrive in a burst,
only the newest is deployed. Two deployments of one repository never overlap, and up to four repositories are deployed
at the same time. A push stays in ``deployer.db`` until its deployment has succeeded. A failed deployment is retried up
to four times. A deployment that ``kill -9`` interrupted runs again when the program starts.
"""

import logging
import os
import sys

from lifecycle import Debounce, GitHub, Inbox, ProcessWorker, Router, WebhookEvent, WebhookSource, run


def repository(event: WebhookEvent) -> str:
    """Return the repository's name, which is the key of its lane."""
    return str(event.json()["repository"]["full_name"])


def branch(event: WebhookEvent) -> tuple[str, str]:
    """Return the key of a burst. It includes the branch, so that only pushes to main replace a push to main."""
    return repository(event), event.json().get("ref", "")


QUIET = float(os.environ.get("QUIET", "5"))  # a burst ends after this many seconds without a push
BURST = Debounce(QUIET, max_wait=60, key=branch)

router = Router("deployer", drain_timeout=600)


@router.on("webhook/push", debounce=BURST, lane=repository, concurrency=4)
async def deploy(event: WebhookEvent) -> None:
    """Run the command for a push to main. GitHub also sends pings, and pushes to other branches."""
    name, ref = branch(event)
    if ref != "refs/heads/main":
        return
    async with ProcessWorker("deploy", *sys.argv[1:], name, event.json()["after"]) as command:
        ended = await command.wait()
    if ended.exit_code != 0:
        raise RuntimeError(f"the deployment of {name} exited with {ended.exit_code}")


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(message)s")
    secret = os.environ.get("WEBHOOK_SECRET") or sys.exit("set WEBHOOK_SECRET to the secret of the webhook")
    port, verify = int(os.environ.get("PORT", "9000")), GitHub(secret)
    router.add_source(WebhookSource(port=port, verify=verify, paths=["/push"], inbox=Inbox("deployer.db")))
    run(router)
