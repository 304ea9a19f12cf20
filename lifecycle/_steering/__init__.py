"""Commands that control a running program, from its prompt or from outside.

`commands` contains the built-in commands and their handlers. `answers` delivers their replies to the caller.
"""

__all__: list[str] = []
