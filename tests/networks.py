"""Network namespaces, in which packets between two hosts can be dropped silently."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.engines import require
from tests.nats_servers import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Switch", "ip"]


def ip(words: str) -> None:
    """Run the program ``ip``. Skip the test or the storm if the system does not allow network namespaces."""
    command = ["ip", *shlex.split(words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if "not permitted" in done.stderr:
        pytest.skip(f"network namespaces are not allowed here: {done.stderr.strip()}")
    assert done.returncode == 0, (command, done.stderr)


class Switch:
    """Hosts in separate namespaces, connected by a switch in the namespace ``hub``, which is also a host."""

    def __init__(self, hosts: int) -> None:
        self._name = f"lifecycle-{os.getpid()}-"
        self.hosts = range(1, hosts + 1)

    @staticmethod
    def address(host: int) -> str:
        return f"10.9.0.{host}"

    def via(self, host: int) -> tuple[str, ...]:
        """Return the command prefix that runs a command on this host."""
        return ("ip", "netns", "exec", f"{self._name}{host}")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Create the hosts. The block, its new threads and its child processes run in the hub's namespace."""
        require("ip")
        hub = f"{self._name}hub"
        try:
            ip(f"netns add {hub}")
            ip(f"-n {hub} link add bus type bridge")
            ip(f"-n {hub} address add {self.address(254)}/24 dev bus")
            ip(f"-n {hub} link set bus up")
            for host in self.hosts:
                self._connect(host, hub)
            with _entered(f"/run/netns/{hub}"):
                yield
        finally:
            for name in (hub, *(f"{self._name}{host}" for host in self.hosts)):
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=LIMIT, check=False)

    def cut(self, host: int) -> None:
        """Drop all packets from and to the host."""
        ip(f"-n {self._name}hub link set to{host} down")

    def separate(self, host: int) -> None:
        """Drop the packets from this host to the other hosts. The hub still reaches it."""
        for other in self.hosts:
            if other != host:
                ip(f"-n {self._name}{host} route replace blackhole {self.address(other)}/32")

    def heal(self, host: int) -> None:
        """Undo `cut` and `separate`."""
        ip(f"-n {self._name}hub link set to{host} up")
        ip(f"-n {self._name}{host} route flush type blackhole")

    def _connect(self, host: int, hub: str) -> None:
        name = f"{self._name}{host}"
        ip(f"netns add {name}")
        ip(f"link add to{host} netns {hub} type veth peer name eth0 netns {name}")
        ip(f"-n {hub} link set to{host} master bus up")
        ip(f"-n {name} address add {self.address(host)}/24 dev eth0")
        ip(f"-n {name} link set eth0 up")
        ip(f"-n {name} link set lo up")


@contextmanager
def _entered(namespace: str) -> Iterator[None]:
    """Move the current thread to a namespace. Python 3.11 has no `os.setns`."""
    libc = ctypes.CDLL(None, use_errno=True)
    before, inside = (os.open(path, os.O_RDONLY) for path in ("/proc/thread-self/ns/net", namespace))
    try:
        assert libc.setns(inside, 0) == 0, os.strerror(ctypes.get_errno())
        yield
    finally:
        libc.setns(before, 0)
        os.close(before)
        os.close(inside)
