"""Programs with a prompt, built-in commands, and a Ctrl+C that always tries the mildest step first.

``routers`` connects sources, routes and handlers. ``interrupts`` implements the steps that Ctrl+C takes.
"""

from lifecycle.interactive.routers import new_interactive_router

__all__ = ["new_interactive_router"]


def __dir__() -> list[str]:
    return __all__
