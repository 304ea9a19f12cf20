"""The cost of each part as its load grows, with the limits. [Scaling](scaling.md) shows the curves.

Each figure is the largest quotient of a point and the limit at this point.
"""

# The processes of an executor import this module again, so it imports only the names of the curves at the top.

from __future__ import annotations

from benchmarks._curves_plots import Curve

__all__ = ["BARS", "CURVES", "main"]

CURVES = {
    "topics": Curve(
        "Topics",
        "Topics that recur in turn",
        "CPU per event, µs",
        (1, 100, 10_000, 1_000_000),
        "14 bare awaits, as for `cold_over_bare`",
        "The curve bends at 4,096 topics, the size of the cache: further topics are looked up in the index.",
    ),
    "routes": Curve(
        "Routes",
        "Routes with a wildcard",
        "CPU per event, µs",
        (1, 10, 100, 1000, 10_000, 100_000),
        "14 bare awaits",
        "The index visits as many nodes for any number of routes. With more routes, fewer of its nodes are in the"
        " processor's cache.",
    ),
    "children": Curve(
        "Supervisors",
        "Children, all tasks",
        "CPU per child, µs",
        (10, 100, 1000, 10_000),
        "25 times the lowest cost of creating and cancelling a task",
        "With 10 children, the supervisor's own start and stop are visible. With 10,000 children, the garbage collector"
        " doubles the cost: without it, the curves stay flat.",
    ),
    "callers": Curve(
        "Pools",
        "Concurrent callers",
        "Time per call, µs",
        (1, 2, 4, 8, 16, 32, 64),
        "half the time of a `ProcessPoolExecutor`",
        "A pool of two workers with one call each is busy with two callers. Async workers write the responses to"
        " several calls at once, until a core is busy.",
    ),
    "rows": Curve(
        "Flows",
        "Flows in an SQLite file",
        "CPU, µs",
        (1000, 10_000, 100_000, 1_000_000),
        "1.5 times the cost of a flow with 1,000 rows, growing with the logarithm of the rows",
        "There is no bend: both operations use an index.",
    ),
    "connections": Curve(
        "Webhooks",
        "Connections that always send",
        "CPU per request, µs",
        (1, 10, 100, 1000),
        "the cost of a bare aiohttp handler divided by 0.75, as for `plain_over_aiohttp`",
        "A single connection costs more, because the event loop wakes up for each request. With 1,000 connections, most"
        " requests wait for space in their lane. A larger `buffer` of the router saves a fifth.",
    ),
    "pages": Curve(
        "Dashboard",
        "Open pages",
        "Share of a core, %",
        (1, 10, 100),
        "15 % for the first page and 0.6 % for each further page, with 1,000 workers and 1,000 changes per second",
        "Messages are encoded once for all pages, so that a further page costs only the writing.",
    ),
}

BARS = {
    "topics_over_limit": "at most 1",
    "routes_over_limit": "at most 1",
    "children_over_limit": "at most 1",
    "callers_over_limit": "at most 1",
    "rows_over_limit": "at most 1",
    "connections_over_limit": "at most 1",
    "pages_over_limit": "at most 1",
    "points": "printed",
}


def main() -> None:
    """Measure all curves, and print their figures."""
    from benchmarks import _curves_flows, _curves_pool, _curves_router, _curves_servers, _curves_supervisors
    from benchmarks._measure import report

    measures = {
        "topics": _curves_router.by_topics,
        "routes": _curves_router.by_routes,
        "children": _curves_supervisors.by_children,
        "callers": _curves_pool.by_callers,
        "rows": _curves_flows.by_rows,
        "connections": _curves_servers.by_connections,
        "pages": _curves_servers.by_pages,
    }
    figures: dict[str, object] = {}
    points: dict[str, dict[str, list[float]]] = {}
    for name, measure in measures.items():
        series, limits = measure(CURVES[name].sizes)
        worst = max(value / limit for values in series.values() for value, limit in zip(values, limits, strict=True))
        figures[f"{name}_over_limit"] = worst
        points[name] = {
            each: [round(value, 3) for value in values] for each, values in (series | {"limit": limits}).items()
        }
    report("curves", figures | {"points": points}, BARS)


if __name__ == "__main__":
    main()
