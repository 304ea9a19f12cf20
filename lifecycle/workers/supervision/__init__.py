"""The parts of a supervisor: the `loop` that decides, each `child`, `stopping` them, and the streams of `watch`."""

__all__: list[str] = []
