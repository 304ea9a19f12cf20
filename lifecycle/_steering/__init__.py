"""Steering a running program by commands, whoever gives them: somebody at its prompt, or from outside.

``lent_commands`` lends the commands to its routers, ``actions`` carries them out, ``children`` finds whom they mean,
and ``answers`` brings what they say to whoever asked. The prompt, the console and the command line stand on this; it
stands on control and runtime, and knows nothing of how the words travel.
"""

from __future__ import annotations

__all__: list[str] = []
