"""What stands behind `mermaid`, from records to text: pure functions that ask nothing and know no clock."""

__all__: list[str] = []
