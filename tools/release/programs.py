"""Programs that check an installed release: one for the whole package, and one for each extra."""

from __future__ import annotations

__all__ = ["EXTRAS", "FOR_TESTS", "SMOKE", "WITHOUT"]

#: Checks the public names, the output of help(), an event and its handler, a worker's start and stop, and a flow.
SMOKE = """
import asyncio, importlib, pkgutil, platform, pydoc, sys
import lifecycle
from lifecycle import Event, Flows, ProcessWorker, Router, linear, run, task
from lifecycle.testing import Recorder, running

for each in lifecycle.__all__:
    getattr(lifecycle, each)
assert "lifecycle.control" in pydoc.render_doc(lifecycle)

@task
def double(number):
    return 2 * number

async def main():
    router, seen = Router(), Recorder()
    router.handle("hello/*", seen)
    async with running(router):
        await (await router.emit(Event("hello/world")))
    assert seen.topics == ["hello/world"]
    async with ProcessWorker("idle", sys.executable, "-c", "import time; time.sleep(100)") as worker:
        assert str(worker.status) == "running"
    async with Flows("flows.db") as flows:
        return (await flows.start(linear("doubling", double), number=21))["double"]

assert run(main) == 42
print(platform.python_implementation(), platform.python_version())
"""

#: Each program prints "works" if its extra is installed.
EXTRAS = {
    "cli": """
from lifecycle.cli.ctl.printing import Table
sheet = Table(("name", "status"), [("api", "running")])
print(sheet.plain())
try:
    assert sheet.rich().row_count == 1
    print("works")
except ImportError as error:
    print(error)
""",
    "docker": """
import asyncio
from lifecycle import ContainerWorker, WorkerFailed
async def main():
    worker = ContainerWorker("db", "postgres", engine="http://127.0.0.1:9")
    try:
        await worker.start()
    except WorkerFailed as error:
        # With the library it is the engine that is missing.
        print(error, "works" if "127.0.0.1:9" in str(error) else "", sep="\\n")
asyncio.run(main())
""",
    "ed25519": """
import base64
from lifecycle.sources.signatures import StandardWebhooks
StandardWebhooks("whsk_" + base64.b64encode(bytes(range(32))).decode())
print("works")
""",
    "nats": """
import asyncio
from lifecycle.bridges import BridgeError, Leader
async def main():
    try:
        async with Leader("one", "nats://127.0.0.1:9"):
            pass
    except BridgeError as error:
        # With the library it is the server that is missing.
        print(error, "works", sep="\\n")
asyncio.run(main())
""",
    "otel": """
from lifecycle.observe import OpenTelemetryMetrics, OpenTelemetryTraces
OpenTelemetryMetrics(), OpenTelemetryTraces()
print("works")
""",
    "pool": """
import asyncio
from lifecycle import Pool
async def main():
    async with Pool("numbers", "operator:neg", size=(1, 1), codec="msgpack") as pool:
        assert await pool.call("neg", 3) == -3
    print("works")
asyncio.run(main())
""",
    "postgres": """
import asyncio
from lifecycle import Flows
from lifecycle.errors import JournalError
async def main():
    try:
        async with Flows("postgresql://127.0.0.1:9/nothing"):
            pass
    except JournalError as error:
        # With the library it is the server that is missing.
        print(error, "works" if "127.0.0.1" in str(error) else "", sep="\\n")
asyncio.run(main())
""",
    "prometheus": """
from lifecycle.observe import PrometheusMetrics
assert PrometheusMetrics().expose()
print("works")
""",
    "yaml": """
import sys
from pathlib import Path
from lifecycle.cli import main
Path("process-compose.yaml").write_text("processes: {web: {command: 'true'}}")
if main(["up", "-f", "process-compose.yaml", "--dry-run"]) == 0:
    print("works")
""",
    "testing": """
import sys
from pathlib import Path
import pytest
Path("test_clock.py").write_text("async def test_clock(clock):\\n    await clock.advance(3600)")
options = ["-q", "-p", "lifecycle.testing.plugin", "-o", "asyncio_mode=auto"]
sys.exit(pytest.main([*options, "test_clock.py"]) or print("works"))
""",
}

#: Expected output without the extra, if the output does not name it. Without rich, for example, tables are plain text.
WITHOUT = {"cli": "No module named 'rich'", "testing": "No module named 'pytest'"}

#: Extras for tests, which programs do not need. The extra `all` does not contain them.
FOR_TESTS = {"testing"}
