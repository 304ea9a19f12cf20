"""Chaos tests: programs that kill, freeze and disconnect ours, and count the losses."""
