"""Every error that the library raises, in one tree.

LifecycleError
├── NotHandled                  no handler took the event, or a handler passed it on
│   ├── Dropped                 dropped on purpose, and counted: a full queue, a superseded run
│   └── InvalidTopic            (ValueError) an invalid topic
├── InvalidPattern              (ValueError) a pattern that cannot be parsed
├── RouteConflict               the pattern, command or name is registered already
├── RouteNotFound               (KeyError) nothing is registered under that pattern
├── RouterRunning               the router is running already
├── LaneFull                    a lane is full, and waiting is impossible or was not requested
├── SourceFailed                a source could not start
├── SourceClosed                an event was given to a source that is closed
├── UsageError                  a command has wrong arguments; the message has the usage
├── Interrupted                 the lifetime began to stop while waiting
├── InvalidTransition           a transition that the table of a state machine does not allow
│   └── InvalidState            (also FlowError) the same for flows and jobs
├── WorkerFailed                a worker ended, or could not start, with an error
│   └── PoolFailed              (also PoolError) the pool gave up
├── RestartLimitReached         a supervisor exceeded its restart limit
├── DoNotRestart                raised by a child: do not restart it
├── StopTree                    raised by a child: stop its supervisors, up to the root
├── JournalError                a journal cannot be opened, read or written
├── VerificationError           a webhook's signature is missing, wrong or too old
├── PoolError
│   ├── RemoteError             the called function raised in its worker process
│   ├── RemoteTraceback         its cause: the traceback there, as text
│   ├── WorkerLost              the worker process died during the call
│   ├── PoolBusy                the pool's queue is full
│   ├── PoolFailed              (also WorkerFailed)
│   ├── PoolClosed              the pool is closed
│   └── SessionLost             the worker of the session has ended
├── BridgeError
│   ├── NotLeader               a process that is not the leader tried to write
│   ├── NotPublished            the bus did not acknowledge an event in time
│   ├── Unpublishable           (ValueError) the bus can never carry this event
│   └── UnfitServer             the server is too old, or cannot set up what a bridge needs
└── FlowError
    ├── InvalidState
    ├── MissingDependencies     nothing provides what a task requires
    ├── AmbiguousDependency     several tasks provide what a task requires
    ├── StepFailed              a task, retry or revert failed
    └── ClaimLost               another owner has taken the job or flow

Each is also importable from the package that raises it.
"""

from __future__ import annotations

__all__ = [
    "AmbiguousDependency",
    "BridgeError",
    "ClaimLost",
    "DoNotRestart",
    "Dropped",
    "FlowError",
    "Interrupted",
    "InvalidPattern",
    "InvalidState",
    "InvalidTopic",
    "InvalidTransition",
    "JournalError",
    "LaneFull",
    "LifecycleError",
    "MissingDependencies",
    "NotHandled",
    "NotLeader",
    "NotPublished",
    "PoolBusy",
    "PoolClosed",
    "PoolError",
    "PoolFailed",
    "RemoteError",
    "RemoteTraceback",
    "RestartLimitReached",
    "RouteConflict",
    "RouteNotFound",
    "RouterRunning",
    "SessionLost",
    "SourceClosed",
    "SourceFailed",
    "StepFailed",
    "StopTree",
    "UnfitServer",
    "Unpublishable",
    "UsageError",
    "VerificationError",
    "WorkerFailed",
    "WorkerLost",
]


class LifecycleError(Exception):
    """The base class of all errors that this library raises."""


class NotHandled(LifecycleError):
    """No handler took the event. If a handler raises it, the next most specific route gets the event."""


class Dropped(NotHandled):
    """The event was dropped on purpose and counted. It is not passed on to another route."""

    #: True if it was dropped in favour of a newer event.
    superseded: bool = False
    #: True if it was still queued, so its handler was not called.
    queued: bool = False


class InvalidTopic(NotHandled, ValueError):
    """A topic that is empty, too long, too deep, or not a string. No route can match it."""


class InvalidPattern(LifecycleError, ValueError):
    """A pattern that cannot be parsed. The message names the position."""


class RouteConflict(LifecycleError):
    """A name, or a pattern for the same topics, was registered twice. The message names both places."""


class RouteNotFound(LifecycleError, KeyError):
    """Nothing is registered under that pattern."""

    # KeyError shows the repr of its argument, which makes a message hard to read.
    def __str__(self) -> str:
        return Exception.__str__(self)


class RouterRunning(LifecycleError):
    """`Router.run` was called while it runs."""


class LaneFull(LifecycleError):
    """A lane is full. ``emit_nowait`` raises this error, and so does ``emit`` if the handler would wait for itself.

    Passing an event on also fails with this error, if the handler would wait for itself.
    """


class SourceFailed(LifecycleError):
    """A source could not start. The cause is the error that it raised."""


class SourceClosed(LifecycleError):
    """An event was given to a source after ``close()``."""


class UsageError(LifecycleError):
    """A command has wrong arguments. If the handler of a command raises it, it is logged as one line."""


class Interrupted(LifecycleError):
    """The lifetime began to stop during a wait."""


class InvalidTransition(LifecycleError):
    """A transition that the table of a state machine does not allow."""


class WorkerFailed(LifecycleError):
    """A worker could not start, or ended with an error."""


class RestartLimitReached(LifecycleError):
    """A supervisor exceeded its restart limit. The cause is a group of the last errors."""


class DoNotRestart(LifecycleError):
    """A child of a supervisor raises this error so that it is not restarted, regardless of its policy.

    If it is raised during the child's start, the child has nothing to run, and the supervisor continues without it.
    """


class StopTree(LifecycleError):
    """A child raises this error so that the supervisors above it stop their other children and end."""


class JournalError(LifecycleError):
    """A journal is closed, or its file cannot be opened, read or written. The message has the remedy."""


class VerificationError(LifecycleError):
    """A signature is missing, malformed, wrong or too old. The message never contains a secret."""


class PoolError(LifecycleError):
    """The base class of errors of a pool."""


class RemoteError(PoolError):
    """The called function raised in its worker process. The cause contains the remote traceback.

    Args:
        type: The name of the exception's class, with its module unless that is ``builtins``.
        message: The message of the exception.
        traceback: The remote traceback as text. Empty if there is none.
    """

    def __init__(self, type: str, message: str, traceback: str = "") -> None:  # noqa: A002  # its name is promised
        super().__init__(type, message, traceback)
        self.type = type
        self.message = message
        self.traceback = traceback
        # Python shows a cause before the error, so the traceback of the other process appears in its usual place.
        self.__cause__: BaseException | None = RemoteTraceback(traceback) if traceback else None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class RemoteTraceback(PoolError):
    """The traceback of another process as text. It is the cause of a `RemoteError`, and is never raised itself."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class WorkerLost(PoolError):
    """The worker process died during the call.

    Args:
        message: A description of how the process ended.
        exit_code: Its exit code, if it exited.
        signal: The number of the signal that killed it, if any.
        rss: Its last reported memory in bytes, if any.
        stderr: The last part of its standard error.
    """

    def __init__(
        self,
        message: str,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        rss: int | None = None,
        stderr: str = "",
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal
        self.rss = rss
        self.stderr = stderr


class PoolBusy(PoolError):
    """The queue of the pool is full."""


class PoolFailed(PoolError, WorkerFailed):
    """The pool gave up because its workers died faster than its restart limit allows. See the cause."""


class PoolClosed(PoolError):
    """The pool is closed or closing."""


class SessionLost(PoolError):
    """The worker of the session has ended, and the state of the session is lost."""


class BridgeError(LifecycleError):
    """The base class of errors of bridges. Raised itself if there is no connection, or if it is permanently lost."""


class NotLeader(BridgeError):
    """A process that is not, or no longer, the leader tried to write. The write was refused or not sent."""


class NotPublished(BridgeError):
    """The bus did not acknowledge an event in time. If it has stored the event, it recognises a repeated id."""


class Unpublishable(BridgeError, ValueError):
    """An event that the bus can never carry: its topic is too long, or its data is too large or not JSON."""


class UnfitServer(BridgeError):
    """The server is too old, or cannot set up what a bridge needs. The message has the remedy."""


class FlowError(LifecycleError):
    """The base class of errors of flows and jobs."""


class InvalidState(InvalidTransition, FlowError):
    """A transition of a flow, task, retry or job that its table does not allow."""


class MissingDependencies(FlowError):
    """A task requires a name that nothing before it provides."""


class AmbiguousDependency(FlowError):
    """A task requires a name that several tasks provide."""


class StepFailed(FlowError):
    """A task, a retry or a revert failed."""


class ClaimLost(FlowError):
    """Another owner has taken the job or flow. Later writes by this process are refused."""
