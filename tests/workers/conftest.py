"""What the tests of supervisors share."""

from __future__ import annotations

import pytest

from tests.workers.puppets import Crew


@pytest.fixture
def crew() -> Crew:
    return Crew()
