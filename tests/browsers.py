"""How the browser of the tests is started: without a window, and without what it does for people."""

from __future__ import annotations

__all__ = ["HEADLESS"]

HEADLESS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-sync",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
