"""What runs in a member, at the other end of its pipes; the parent's side is in the modules above.

`program` is what is executed, `life` what happens from the greeting to the end. The three engines are where calls run.
A member is started often, so nothing in here imports what it can do without; and nothing of the parent's side, but for
`frames` and `codecs`, which are common to both.
"""

__all__: list[str] = []
