"""Ratios to peers and limits, each measured in one run: ``make bench``."""
