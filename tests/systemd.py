"""The real systemd as process 1 of its own namespaces, with this machine's files, which it cannot change.

This needs root. There is no container engine, no image and no second network.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

__all__ = ["Systemd", "missing"]

#: The timeout in seconds. A boot usually takes two seconds.
_LIMIT = 60.0
_SYSTEMD = "/lib/systemd/systemd"
#: Units that would change the machine, such as its kernel modules, or that would only cost time.
_MASKED = (
    *("systemd-remount-fs.service", "systemd-modules-load.service", "modprobe@.service", "systemd-sysctl.service"),
    *("dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount"),
    *("sys-kernel-config.mount", "sys-fs-fuse-connections.mount", "proc-sys-fs-binfmt_misc.automount"),
    *("systemd-binfmt.service", "systemd-update-utmp.service", "systemd-random-seed.service", "swap.target"),
    *("systemd-journald-audit.socket", "dbus.socket", "systemd-initctl.socket", "systemd-tmpfiles-setup-dev.service"),
    *("systemd-journal-flush.service", "systemd-timesyncd.service"),
)
# $1 is the directory of the test, and the other words are directories with Python and the library.
_BOOT = """
set -e
home=$1 root=$1/root
shift
mount --make-rprivate /
mount --bind / $root
mount -o remount,bind,ro $root
mount -t proc proc $root/proc
mount --bind $root/proc/sys $root/proc/sys
mount -o remount,bind,ro $root/proc/sys
mount -t sysfs -o ro sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
for path in dev run var tmp; do mount -t tmpfs -o mode=755 tmpfs $root/$path; done
for name in null zero full random urandom tty; do
    touch $root/dev/$name
    mount --bind /dev/$name $root/dev/$name
done
ln -s /proc/self/fd $root/dev/fd
mkdir $root/dev/shm $root/run/old $root/var/tmp
touch $root/run/nothing
mount --bind $root/run/nothing $root/etc/fstab
for path in "$@"; do
    mkdir -p "$root$path"
    mount --bind -o ro "$path" "$root$path"
done
mkdir -p $root$home
mount --bind $home $root$home
mount --bind $home/settings $root/etc/systemd
cd $root
pivot_root . run/old
umount -l /run/old
exec env -i container=other PATH="$PATH" %s --system --unit=basic.target --log-target=journal --show-status=no
""".replace("%s", _SYSTEMD)


def _cgroups() -> Path | None:
    """Return where cgroups of version 2 are mounted."""
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" and "rw" in options.split(","):
            return Path(place)
    return None


def missing() -> str | None:
    """Return why systemd cannot be started here, or None if it can."""
    if os.geteuid():
        return "starting systemd needs root"
    if not Path(_SYSTEMD).exists():
        return "systemd is not installed; `make engines` installs it"
    if _cgroups() is None:
        return "no writable cgroups of version 2"
    words = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--uts",
        "--ipc",
        "--cgroup",
        "mount",
        "-t",
        "tmpfs",
        "none",
        "/mnt",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"namespaces cannot be created: {done.stderr.strip()}" if done.returncode else None


class Systemd:
    """A running systemd. Unit files belong in `units`."""

    def __init__(self) -> None:
        #: A directory that this process and the services see at the same path. It must be short, for sockets.
        self.home = Path(tempfile.mkdtemp(prefix="lifecycle-systemd-"))
        self.units = self.home / "settings" / "system"
        self.units.mkdir(parents=True)
        (self.home / "root").mkdir()
        # journald must not turn on the kernel's auditing.
        (self.home / "settings" / "journald.conf").write_text("[Journal]\nStorage=volatile\nAudit=\nReadKMsg=no\n")
        for name in _MASKED:
            (self.units / name).symlink_to("/dev/null")
        place = _cgroups()
        assert place is not None, "not available, but the test was not skipped"
        self._cgroup = place / self.home.name
        self._cgroup.mkdir()
        with (self.home / "log").open("wb") as log:
            self._process = subprocess.Popen(self._argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait()

    def _argv(self) -> list[str]:
        here = str(Path(__file__).resolve().parents[1])
        seen = sorted({here, sys.prefix, sys.base_prefix})
        # The kernel kills systemd, and so all services, when this process exits for any reason.
        unshare = ["setpriv", "--pdeathsig", "KILL", "unshare", "--kill-child=KILL"]
        unshare += ["--mount", "--pid", "--fork", "--uts", "--ipc", "--cgroup"]
        enter = f'echo $$ > {self._cgroup}/cgroup.procs; exec "$@"'
        return ["sh", "-c", enter, "sh", *unshare, "sh", "-c", _BOOT, "sh", str(self.home), *seen]

    def _wait(self) -> None:
        end = time.monotonic() + _LIMIT
        while self.systemctl("is-system-running", fails=True) not in ("running", "degraded"):
            if self._process.poll() is not None or time.monotonic() > end:
                text = self.log()
                self.close()
                pytest.fail(f"systemd did not start; it wrote:\n{text}")
            time.sleep(0.05)

    def run(self, *argv: str, fails: bool = False) -> str:
        """Run a program among the services, and return its output. It must succeed unless ``fails`` is true."""
        children = psutil.Process(self._process.pid).children()
        if not children:
            return ""
        enter = ["nsenter", f"--target={children[0].pid}", "--mount", "--pid", "--uts", "--ipc", "--cgroup"]
        done = subprocess.run(
            [*enter, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
        if done.returncode and not fails:
            journal = self.journal() if argv[0] != "journalctl" else ""
            pytest.fail(f"{' '.join(argv)} exited with {done.returncode}: {done.stdout}{done.stderr}\n{journal}")
        return done.stdout.strip()

    def systemctl(self, *words: str, fails: bool = False) -> str:
        return self.run("systemctl", "--no-pager", *words, fails=fails)

    def install(self, **units: str) -> None:
        """Write unit files, such as ``web_service`` for ``web.service``, and load them."""
        for name, text in units.items():
            (self.units / ".".join(name.rsplit("_", 1))).write_text(text)
        self.systemctl("daemon-reload")

    def show(self, unit: str, *names: str) -> list[str]:
        """Return the values of the unit's properties."""
        text = self.systemctl("show", unit, *(f"--property={name}" for name in names))
        found = dict(line.split("=", 1) for line in text.splitlines())
        return [found[name] for name in names]

    def journal(self, *units: str) -> str:
        """Return what the units have written."""
        return self.run("journalctl", "--no-pager", "--output=cat", *(f"--unit={unit}" for unit in units))

    def log(self) -> str:
        """Return what systemd itself has written."""
        return (self.home / "log").read_text(errors="replace")

    def close(self) -> None:
        """Kill systemd and all services, and remove their files."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        end = time.monotonic() + _LIMIT
        while "populated 1" in (self._cgroup / "cgroup.events").read_text():
            assert time.monotonic() < end
            time.sleep(0.01)
        for path in sorted(self._cgroup.rglob("*/"), reverse=True):
            path.rmdir()
        self._cgroup.rmdir()
        shutil.rmtree(self.home)
