"""Programs with a prompt, built-in commands, and step-by-step handling of Ctrl+C, starting with the mildest step.

``routers`` connects sources, routes and handlers. ``interrupts`` implements the steps taken on Ctrl+C.
"""

from lifecycle.interactive.routers import new_interactive_router

__all__ = ["new_interactive_router"]


def __dir__() -> list[str]:
    return __all__
