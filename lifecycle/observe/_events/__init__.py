"""What stands behind an `EventLog`: what is noted of each event, who follows, where it is written, why nothing came."""

__all__: list[str] = []
