"""Programs that some tests need, and a real container engine: Podman, with all its data in a temporary directory.

The directory also contains Podman's settings, so that clients of its socket need no arguments. They allow containers
inside a virtual machine or a container: they use no systemd, overlay or bridge, and do not raise our limits.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests import postgres

__all__ = ["IMAGE", "Engine", "require"]

IMAGE = "lifecycle/busybox"
#: The timeout in seconds. The engine usually takes one second.
_LIMIT = 60.0

_CONTAINERS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
lock_type = "file"
tmp_dir = "{home}/tmp"
[network]
network_backend = "cni"
network_config_dir = "{home}/networks"
default_network = "alone"
"""
_STORAGE = """
[storage]
driver = "vfs"
runroot = "{home}/run"
graphroot = "{home}/graph"
"""
# With these settings, pulling a missing image fails immediately, without a network request.
_REGISTRIES = """
[[registry]]
prefix = "missing.invalid"
location = "missing.invalid"
blocked = true
"""
_NETWORK = '{"cniVersion": "0.4.0", "name": "alone", "plugins": [{"type": "loopback"}]}'


def require(name: str) -> None:
    """Skip the test or the storm if a program is not installed."""
    if (postgres.program(name) if name in ("postgres", "pgbouncer") else shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed; `make engines` installs it")


class Engine:
    """Podman, listening at `address`. Its only image is `IMAGE`, which contains busybox."""

    def __init__(self) -> None:
        # A socket's path must be short, so the directory is not below pytest's.
        self.home = Path(tempfile.mkdtemp(prefix="lifecycle-engine-"))
        self.socket = self.home / "podman.sock"
        self.address = f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None
        files = {
            "containers.conf": _CONTAINERS,
            "storage.conf": _STORAGE,
            "registries.conf": _REGISTRIES,
        }
        for name, text in files.items():
            (self.home / name).write_text(text.replace("{home}", str(self.home)))
        (self.home / "networks").mkdir()
        (self.home / "networks" / "alone.conflist").write_text(_NETWORK)
        self._env = {
            **os.environ,
            "CONTAINERS_CONF": f"{self.home}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{self.home}/storage.conf",
            "CONTAINERS_REGISTRIES_CONF": f"{self.home}/registries.conf",
        }
        self._env.pop("CONTAINER_HOST", None)

    def start(self) -> str:
        """Start the engine, wait until it responds, and return its description."""
        self.socket.unlink(missing_ok=True)
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # The kernel kills the engine when this process exits for any reason.
                ["setpriv", "--pdeathsig", "KILL", "podman", "system", "service", "--time=0", self.address],
                cwd=self.home,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + _LIMIT
        while (answer := self._ping()) is None:
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"podman did not start; it wrote:\n{(self.home / 'log').read_text(errors='replace')}")
            time.sleep(0.02)
        return answer

    def kill(self) -> None:
        """Kill the engine. Containers continue to run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def import_image(self) -> None:
        """Build `IMAGE` from this machine's busybox."""
        path = self.home / "busybox.tar"
        busybox = shutil.which("busybox")
        assert busybox is not None, "not installed, but the test was not skipped"
        with tarfile.open(path, "w") as tar:
            tar.add(Path(busybox).resolve(), "bin/busybox")
            for applet in subprocess.check_output([busybox, "--list"], text=True).split():
                if applet != "busybox":
                    link = tarfile.TarInfo(f"bin/{applet}")
                    link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                    tar.addfile(link)
        self._podman("import", "--quiet", str(path), IMAGE)

    def close(self) -> None:
        """Remove the engine, its containers and its files."""
        self.kill()
        with suppress(subprocess.SubprocessError):
            self._podman("rm", "--all", "--force", "--time=0")
        shutil.rmtree(self.home, ignore_errors=True)

    def _podman(self, *words: str) -> None:
        done = subprocess.run(
            ["podman", *words],
            env=self._env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"podman {' '.join(words)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")

    def _ping(self) -> str | None:
        with socket.socket(socket.AF_UNIX) as there:
            there.settimeout(_LIMIT)
            try:
                there.connect(str(self.socket))
                there.sendall(b"GET /_ping HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n")
                answer = http.client.HTTPResponse(there)
                answer.begin()
            except (OSError, http.client.HTTPException):
                return None
            return f"{answer.getheader('Server')}, API {answer.getheader('Api-Version')}"
