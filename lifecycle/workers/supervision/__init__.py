"""How a supervisor decides: one task, the `loop`, about each `child`; `stopping` them, and who may `watch`."""

__all__: list[str] = []
