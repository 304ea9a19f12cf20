"""A program with a prompt: built-in commands, and Ctrl+C that does the mildest thing first.

``routers`` connects sources, routes and handlers; ``interrupts`` has the steps of Ctrl+C.
"""

from lifecycle.interactive.routers import new_interactive_router

__all__ = ["new_interactive_router"]


def __dir__() -> list[str]:
    return __all__
