"""Programs with a prompt: built-in commands, and a Ctrl+C that takes the mildest possible step first.

``routers`` connects sources, routes and handlers. ``interrupts`` implements the steps of Ctrl+C.
"""

from lifecycle.interactive.routers import new_interactive_router

__all__ = ["new_interactive_router"]


def __dir__() -> list[str]:
    return __all__
