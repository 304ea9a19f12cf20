"""A program with a prompt: the commands that every program needs, and a Ctrl+C that does the mildest thing first.

``routers`` wires sources and handlers together, ``actions`` carries out what is asked for and says so, ``running``
lets commands be cancelled, and ``ladders`` has the steps of Ctrl+C. What can be done without a person at the keyboard
belongs to sources and handlers.
"""

from lifecycle.interactive.routers import new_interactive_router

__all__ = ["new_interactive_router"]
