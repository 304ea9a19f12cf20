"""User code for mypy and pyright to check (``make types``). Nothing here is run.

A wrong use has ``type: ignore`` for mypy and ``pyright: ignore`` for pyright, each with the checker's error code. If a
checker accepts the wrong use one day, the ignore is unused, which is an error too. A comment above it names the
mistake.
"""
