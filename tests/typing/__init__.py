"""User code for mypy and pyright to check (``make types``). This code never runs.

A wrong use has ``type: ignore`` for mypy and ``pyright: ignore`` for pyright, each with the checker's error code. A
comment above it names the mistake. If a checker accepts the wrong use one day, the ignore becomes unused, which is also
an error.
"""
