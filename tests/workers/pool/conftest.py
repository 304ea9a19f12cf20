"""A fixture that checks the phases of all pool workers started by tests in this directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.pool import phases_checked

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _phases_checked() -> Iterator[None]:
    with phases_checked():
        yield
