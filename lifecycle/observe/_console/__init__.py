"""What stands behind a `Console`: orders and their outcomes, what the program prints, and its diagrams."""

__all__: list[str] = []
