"""A deployment that resumes after a crash: build, migrate, switch. If a step fails, earlier steps are reverted.

Run ``python examples/deploy_flow.py v1``, then ``v2``, then ``v3-broken``. All data is in ``./deployed``. Stop the
program with Ctrl+C or ``kill -9`` and start it again with the same argument: it continues at the interrupted step. To
repeat a reverted deployment, run ``lifecycle flows retry deployed/flows.db v3-broken`` first.
"""

import asyncio
import os
import sys
from pathlib import Path

from lifecycle import run
from lifecycle.flows import Flows, current_task, linear, task

HOME = Path(os.environ.get("DEPLOYED", "deployed"))


async def write(name: str, text: str) -> None:
    """Write the whole file or nothing. Repeating the call is safe, because any step of a flow may run twice."""
    print(current_task().name, "back" if current_task().reverting else "", flush=True)
    (new := HOME / f".{name}").write_text(text)
    new.replace(HOME / name)
    await asyncio.sleep(float(os.environ.get("PACE", "1")))  # gives you time to stop the program


@task
def before() -> dict[str, str]:
    """Record the old state in a separate step. The record stays valid when later steps run twice."""
    return {path.name: path.read_text() for path in HOME.iterdir() if path.name in ("schema", "live")}


@task
async def build(ref: str) -> str:
    """Build into a new directory, so there is nothing to revert."""
    await write(f"app-{ref}", f"the program as of {ref}\n")
    return f"app-{ref}"


@task
async def migrate(ref: str, before: dict[str, str]) -> None:
    """Add a line to the recorded schema. Adding it to the current schema could add it twice."""
    await write("schema", f"{before.get('schema', '')}{ref} was here\n")


@migrate.revert
async def migrate_back(before: dict[str, str]) -> None:
    """Revert the migration, even if it failed half-way."""
    await write("schema", before.get("schema", ""))


@task
async def switch(build: str) -> None:
    """Make the new version live, if it works."""
    await write("live", build)
    if "broken" in build:
        raise RuntimeError(f"{build} does not answer")


@switch.revert
async def switch_back(before: dict[str, str]) -> None:
    """Make the old version live again."""
    await write("live", before.get("live", "nothing"))


deploy = linear("deploy", before, build, migrate, switch)


async def main() -> None:
    """Finish interrupted deployments, then deploy the given version once."""
    async with Flows(HOME / "flows.db") as flows:
        await asyncio.gather(*await flows.recover(deploy), return_exceptions=True)
        await asyncio.gather(flow := flows.start(deploy, id=sys.argv[1], ref=sys.argv[1]), return_exceptions=True)
        print(f"{flow.id} is {flow.state}; live is {(HOME / 'live').read_text()}", flush=True)


if __name__ == "__main__":
    HOME.mkdir(exist_ok=True)
    run(main)
