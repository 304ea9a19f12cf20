"""Chaos tests: programs that kill, freeze and disconnect processes of the library, and count the losses."""
