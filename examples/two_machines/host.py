"""This program runs on two machines. ``deploy VERSION`` on either one reloads both, and only the leader runs the job.

The commands are in README.md in this directory.
"""

import sys

from lifecycle import CommandEvent, Event, TickerSource, TickEvent, new_interactive_router, run
from lifecycle.bridges import BridgeError, BusEvent, Leader, LeaderEvent, NatsBridge

name, url = (*sys.argv[1:], "nats://127.0.0.1:4222")[:2]

router = new_interactive_router()

# Each machine has its own group, so each receives every deployment, including its own.
router.add_source(NatsBridge(url, group=name, publish="deploy/*", subscribe="deploy/*"))

# A short lease makes the takeover visible quickly. The default is 15 seconds.
leader = Leader("cron", url, lease=3.0)
router.add_source(leader)
router.add_source(TickerSource(0.5, name="cron"))


@router.command
async def deploy(event: CommandEvent) -> None:
    """Deploy VERSION on every machine."""
    await (await router.emit(Event("deploy/asked", {"version": event.args[0], "by": name})))


@router.on("deploy/asked")
def reload(event: BusEvent) -> None:
    """Load the version in the event."""
    print(f"{name}: version {event.data['version']} from {event.data['by']}", flush=True)


@router.on(TickEvent)
async def job(_: TickEvent) -> None:
    """Do the leader's work, continuing where the previous leader stopped."""
    token = leader.token
    if token is None:
        return
    try:
        count = int(await leader.get("count") or 0) + 1
        # The write is refused if another machine has become the leader, even if this machine has not noticed it.
        await leader.put("count", str(count).encode(), token=token)
    except BridgeError as error:
        print(f"{name}: no run: {error}", flush=True)
    else:
        print(f"{name}: run {count} of the job, token {token}", flush=True)


@router.on(LeaderEvent)
def tell(event: LeaderEvent) -> None:
    """Print whether this machine has become the leader or is no longer the leader."""
    print(f"{name}: {'leads' if event.leading else 'leads no longer: ' + event.reason}", flush=True)


if __name__ == "__main__":
    run(router)
