"""A flow has the same outcome even if its process dies after one of its transactions."""

from __future__ import annotations

import pytest

from tests.chaos.crash_points import die_at_each_point
from tests.chaos.report import Report
from tests.flows.numbered_flows import NumberedFlow

#: The numbers of the flows. `NumberedFlow` always builds the same flow for the same number.
FLOWS = range(14)


@pytest.mark.parametrize("number", FLOWS)
async def test_a_flow_that_dies_after_any_transaction_ends_the_same(number: int) -> None:
    report = Report()
    await die_at_each_point(number, report)
    assert report.violations == []
    assert report.kills


def test_the_numbered_flows_cover_all_patterns_and_retries() -> None:
    flows = [NumberedFlow(number).flow for number in FLOWS]
    assert {flow.pattern for flow in flows} == {"linear", "unordered", "graph"}
    assert any(flow.edges for flow in flows)
    assert len({type(flow.retry and flow.retry.retry) for flow in flows}) > 3
