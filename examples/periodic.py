"""Run jobs on a schedule, and catch up if the machine was off: ``python examples/periodic.py``.

The folder ``data`` is archived at three every night. If the program was not running then, it creates a single archive
when it starts, even if it missed several nights. The report is printed for every hour, including the hours that were
missed.
"""

import logging

from lifecycle import ProcessWorker, Router, ScheduleSource, TickEvent, run

router = Router("periodic", drain_timeout=600)
router.add_source(ScheduleSource("0 3 * * *", name="backup", catch_up="once", state="backup.json"))
router.add_source(ScheduleSource("@hourly", name="report", catch_up="all", state="report.json"))


@router.on("tick/backup")
async def backup(event: TickEvent) -> None:
    """Write an archive named after the scheduled day, so a repeated backup replaces the first one."""
    archive = f"{event.time:%Y-%m-%d}.tar.gz"
    async with ProcessWorker("tar", "tar", "-czf", archive, "data") as tar:
        ended = await tar.wait()
    if ended.exit_code != 0:
        raise RuntimeError(f"tar exited with {ended.exit_code}")
    print("wrote", archive, flush=True)


@router.on("tick/report")
def report(event: TickEvent) -> None:
    """Print a report on the hour that has ended."""
    print(f"report of {event.time:%Y-%m-%d %H:%M}", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(message)s")
    run(router)
