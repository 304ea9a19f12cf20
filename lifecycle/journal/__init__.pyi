from lifecycle.errors import JournalError as JournalError
from lifecycle.journal.database import Schema as Schema
from lifecycle.journal.queues import QUEUES as QUEUES
from lifecycle.journal.queues import Entry as Entry
from lifecycle.journal.queues import Queue as Queue
from lifecycle.journal.writer import Journal as Journal
