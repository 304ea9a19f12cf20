"""The meters, whoever they are told to: what there is to measure, how it is read, and how its series are kept.

Nothing here knows Prometheus or OpenTelemetry.
"""

__all__: list[str] = []
