"""Fixtures for the tests of supervisors."""

from __future__ import annotations

import pytest

from tests.workers.fake_workers import Fakes


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()
