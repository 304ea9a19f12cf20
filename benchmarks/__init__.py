"""Measurements of lifecycle relative to other libraries and to hand-written code: ``make bench``."""
