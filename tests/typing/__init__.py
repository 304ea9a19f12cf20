"""User code for mypy and pyright to check (``make types``). This code never runs.

Incorrect code has ``type: ignore`` for mypy and ``pyright: ignore`` for pyright, each with the checker's error code. A
comment above it names the mistake. If a checker starts to accept the code, the ignore becomes unused, which is also an
error.
"""
