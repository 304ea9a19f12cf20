"""What stands behind `snapshot` and `watch`: asking what lives, and the records and tables of what it says."""

__all__: list[str] = []
