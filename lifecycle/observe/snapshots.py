"""A program at one moment, and what changes in it.

`snapshot` asks everything that lives, `nodes` has the same as a flat table, `watch` tells what is new, and
`snapshot_schema` says what it all looks like as JSON.
"""

from __future__ import annotations

from lifecycle.observe._snapshot.nodes import nodes
from lifecycle.observe._snapshot.schema import snapshot_schema
from lifecycle.observe._snapshot.views import Snapshot
from lifecycle.observe._taking import snapshot
from lifecycle.observe.watching import Update, Watch, watch

__all__ = ["Snapshot", "Update", "Watch", "nodes", "snapshot", "snapshot_schema", "watch"]
