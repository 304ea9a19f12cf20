"""Keep a web server, a job worker and a scheduler running together: ``python examples/trio.py``.

The worker and the scheduler start when the web server responds. A process is restarted when it exits, or when its probe
has failed three times. Ctrl+C and SIGTERM stop the processes in reverse order. Replace the three commands with yours,
such as gunicorn, ``celery worker`` and ``celery beat``. Their working directory is HOME_OF_TRIO.
"""

import logging
import os
import sys
import time
from pathlib import Path

from lifecycle import Spec, Supervisor, run

HOME = Path(os.environ.get("HOME_OF_TRIO", "/tmp"))
PORT = os.environ.get("PORT", "8000")
URL = f"http://127.0.0.1:{PORT}/"


def work() -> None:
    """Carry out the jobs in the directory, and touch a file to show that the worker is alive."""
    while True:
        for job in Path().glob("*.job"):
            job.unlink()
            print("did", job, flush=True)
        Path("worker.alive").touch()
        time.sleep(0.1)


def beat() -> None:
    """Add a job every few seconds."""
    while True:
        Path(f"{time.time():.1f}.job").touch()
        time.sleep(float(os.environ["EVERY"]))


def this(role: str) -> list[str]:
    """Return the command that runs this file in a different role."""
    return [sys.executable, str(Path(__file__).resolve()), role]


def trio() -> Supervisor:
    """Return a supervisor of the three processes."""
    return Supervisor(
        "trio",
        Spec(
            "web",
            [sys.executable, "-u", "-m", "http.server", PORT, "--bind", "127.0.0.1"],
            cwd=HOME,
            ready=URL,
            probe=URL,
            restart_unhealthy=True,
        ),
        Spec(
            "worker",
            this("work"),
            cwd=HOME,
            stop_timeout=30,
            probe="cmd:sh -c 'find worker.alive -newermt \"-2 seconds\" | grep -q .'",
            probe_interval=1,
            restart_unhealthy=True,
        ),
        Spec("beat", this("beat"), cwd=HOME, env={"EVERY": "2"}, first_start="retry"),
    )


if __name__ == "__main__":
    roles = {"work": work, "beat": beat}
    if len(sys.argv) > 1:
        roles[sys.argv[1]]()
    else:
        logging.basicConfig(level="INFO", format="%(name)s: %(message)s")
        run(trio())
