"""The package as a whole: imports, the error if its dependency is missing, and comparisons."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from lifecycle.bridges import UnfitServer, streams
from lifecycle.bridges.streams import Group

WITHOUT = """
import asyncio, sys
sys.modules["nats"] = sys.modules["nats.aio.client"] = None
from lifecycle.bridges import NatsBridge
from lifecycle import Router
router = Router()
router.add_source(NatsBridge("nats://127.0.0.1:1", group="g", publish=("a",)))
asyncio.run(router.run())
"""

LOADED = """
import json, sys
import lifecycle.bridges
lifecycle.bridges.NatsBridge("nats://x", group="g", subscribe=("a",))
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""

GROUP = Group("g", ["ev.a", "ev.a.>"], 15.0, strict=False)


def test_the_client_is_loaded_when_it_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60, check=True)
    assert "nats" not in json.loads(done.stdout)


def test_without_the_client_the_extra_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install 'lifecycle-control[nats]'" in done.stderr


@pytest.mark.parametrize(
    ("got", "setting"),
    [
        ({"filter_subjects": None}, "filter_subjects"),
        ({"filter_subjects": None, "filter_subject": "ev.a"}, "filter_subjects"),
        ({"ack_wait": 30.0}, "ack_wait"),
        ({"max_deliver": 5}, "max_deliver"),
        ({"max_ack_pending": 1000}, "max_ack_pending"),
        ({"ack_policy": "none"}, "ack_policy"),
    ],
)
def test_a_group_that_the_server_made_in_another_way_is_refused(got: dict[str, Any], setting: str) -> None:
    """An older server ignores the setting, and only its response reveals that."""
    as_asked = streams._consumer(GROUP)
    streams._compare_consumer(as_asked, GROUP)
    with pytest.raises(UnfitServer, match=rf"created the group 'g' with {setting}="):
        streams._compare_consumer(as_asked.evolve(**got), GROUP)


def test_a_single_filter_in_the_answer_is_recognised() -> None:
    group = Group("g", ["ev.a"], 15.0, strict=True)
    answer = streams._consumer(group).evolve(filter_subjects=None, filter_subject="ev.a")
    assert isinstance(answer, ConsumerConfig)
    streams._compare_consumer(answer, group)
    assert answer.max_ack_pending == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"subjects": ["ev.a.>"]}, r"does not include ev\.>"),
        ({"sealed": True}, "is sealed"),
        ({"duplicate_window": 0}, "does not detect duplicate ids"),
    ],
)
def test_a_stream_that_could_lose_something_is_refused(settings: dict[str, Any], why: str) -> None:
    config = StreamConfig(name="S", subjects=["other", "ev.>"], duplicate_window=1)
    streams._compare_stream(config, "S", "ev")
    streams._compare_stream(config.evolve(subjects=[">"]), "S", "ev")
    with pytest.raises(UnfitServer, match=why):
        streams._compare_stream(config.evolve(**settings), "S", "ev")
