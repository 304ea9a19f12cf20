"""Chaos tests: programs that kill, freeze and disconnect the library's processes, and count the losses."""
