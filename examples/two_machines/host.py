"""One of two machines: ``deploy VERSION`` on either reloads both, and one of them runs the job.

Try it as README.md beside it says.
"""

import sys

from lifecycle import CommandEvent, Event, TickerSource, TickEvent, new_interactive_router, run
from lifecycle.bridges import BridgeError, BusEvent, Leader, LeaderEvent, NatsBridge

name, url = (*sys.argv[1:], "nats://127.0.0.1:4222")[:2]

router = new_interactive_router()

# A group of its own for each machine: every one of them gets every deployment, its own ones too.
router.add_source(NatsBridge(url, group=name, publish="deploy/*", subscribe="deploy/*"))

# So short a lease is for who wants to see a takeover; 15 seconds is the default.
leader = Leader("cron", url, lease=3.0)
router.add_source(leader)
router.add_source(TickerSource(0.5, name="cron"))


@router.command
async def deploy(event: CommandEvent) -> None:
    """Deploy VERSION on every machine."""
    await (await router.emit(Event("deploy/asked", {"version": event.args[0], "by": name})))


@router.on("deploy/asked")
def reload(event: BusEvent) -> None:
    """What a machine does with a new version."""
    print(f"{name}: version {event.data['version']} from {event.data['by']}", flush=True)


@router.on(TickEvent)
async def job(_: TickEvent) -> None:
    """What only one may do: it goes on where the leader before has left it."""
    token = leader.token
    if token is None:
        return
    try:
        count = int(await leader.get("count") or 0) + 1
        # Refused if another has led since, whatever this machine believes.
        await leader.put("count", str(count).encode(), token=token)
    except BridgeError as error:
        print(f"{name}: no run: {error}", flush=True)
    else:
        print(f"{name}: run {count} of the job, token {token}", flush=True)


@router.on(LeaderEvent)
def tell(event: LeaderEvent) -> None:
    """So that one sees it."""
    print(f"{name}: {'leads' if event.leading else 'leads no longer: ' + event.reason}", flush=True)


if __name__ == "__main__":
    run(router)
