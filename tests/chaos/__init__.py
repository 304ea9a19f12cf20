"""Storms: programs that do to ours what should never happen, and count what is lost."""
