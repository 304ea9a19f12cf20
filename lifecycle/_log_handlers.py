"""The log handlers of this process that hold on to a stream, for whoever puts another in its place."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["stream_handlers"]


def stream_handlers() -> list[logging.StreamHandler[Any]]:
    """Each once; not those that write to files, or in a way of their own."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {handler for each in loggers if isinstance(each, logging.Logger) for handler in each.handlers}
    return [handler for handler in handlers if type(handler) is logging.StreamHandler]
