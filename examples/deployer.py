"""Deploy repositories when GitHub sends a push: ``WEBHOOK_SECRET=hush python examples/deployer.py ./deploy.sh``.

The command runs with the name of the repository and the commit as arguments, for the newest push to main of a burst.
Two deployments of one repository never overlap. Up to four repositories are deployed at the same time. A push is stored
in ``deployer.db`` until its deployment has succeeded. After a failure, it is repeated up to four times, and after
``kill -9`` when the program starts again.
"""

import logging
import os
import sys

from lifecycle import Debounce, GitHub, Inbox, ProcessWorker, Router, WebhookEvent, WebhookSource, run


def repository(event: WebhookEvent) -> str:
    """Return the key of the lane."""
    return str(event.json()["repository"]["full_name"])


def branch(event: WebhookEvent) -> tuple[str, str]:
    """Return the key of a burst: a push to another branch must not replace a push to main."""
    return repository(event), event.json().get("ref", "")


QUIET = float(os.environ.get("QUIET", "5"))  # seconds without a push that end a burst
BURST = Debounce(QUIET, max_wait=60, key=branch)

router = Router("deployer", drain_timeout=600)


@router.on("webhook/push", debounce=BURST, lane=repository, concurrency=4)
async def deploy(event: WebhookEvent) -> None:
    """Run the command. GitHub sends other branches and its ping too."""
    name, ref = branch(event)
    if ref != "refs/heads/main":
        return
    async with ProcessWorker("deploy", *sys.argv[1:], name, event.json()["after"]) as command:
        ended = await command.wait()
    if ended.exit_code != 0:
        raise RuntimeError(f"the deployment of {name} exited with {ended.exit_code}")


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(message)s")
    port, verify = int(os.environ.get("PORT", "9000")), GitHub(os.environ["WEBHOOK_SECRET"])
    router.add_source(WebhookSource(port=port, verify=verify, paths=["/push"], inbox=Inbox("deployer.db")))
    run(router)
