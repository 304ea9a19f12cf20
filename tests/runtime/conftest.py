"""Programs that run in virtual time, with signals that only the test sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lifecycle.testing.signals import FakeSignals

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def signals() -> Iterator[FakeSignals]:
    with FakeSignals() as fake:
        yield fake
