from lifecycle.errors import JournalError as JournalError
from lifecycle.journal.locks import FileLock as FileLock
from lifecycle.journal.queues import QUEUES as QUEUES
from lifecycle.journal.queues import Entry as Entry
from lifecycle.journal.queues import Queue as Queue
from lifecycle.journal.schemas import Schema as Schema
from lifecycle.journal.tallies import Tally as Tally
from lifecycle.journal.writing import Journal as Journal
