"""What is typed or piped into a program, for `InputSource` and `PromptSource`.

`chunks` reads bytes without blocking, `lines` makes lines of them, `vocabulary` says what a line stands for. A prompt
is one of the `conversations` with prompt_toolkit, which has our `terminals` and writes `output` above itself.
"""

from __future__ import annotations

__all__: list[str] = []
