"""Commands that control a running program, either from its prompt or from another process.

`commands` contains the built-in commands and their handlers. `answers` delivers their replies to the caller.
"""

__all__: list[str] = []
