"""All errors that the library raises, in one tree.

LifecycleError
├── NotHandled                  no handler handled the event, or a handler passed it on
│   ├── Dropped                 deliberately dropped, and counted: a full queue, a superseded run
│   └── InvalidTopic            (ValueError) an invalid topic
├── InvalidPattern              (ValueError) a pattern that cannot be parsed
├── RouteConflict               the pattern, command or name is already registered
├── RouteNotFound               (KeyError) nothing is registered under that pattern
├── RouterRunning               the router is already running
├── LaneFull                    a lane is full, and waiting is impossible or was not requested
├── SourceFailed                a source could not start
├── SourceClosed                an event was passed to a closed source
├── UsageError                  a command has the wrong arguments; the message shows its usage
├── Interrupted                 the lifetime started to stop while the caller was waiting
├── InvalidTransition           a state machine's table does not allow a transition
│   └── InvalidState            (also FlowError) the same for flows and jobs
├── WorkerFailed                a worker failed, or could not start
│   └── PoolFailed              (also PoolError) the pool gave up
├── RestartLimitReached         a supervisor exceeded its restart limit
├── DoNotRestart                raised by a child: do not restart it
├── StopTree                    raised by a child: stop its supervisors, up to the root
├── JournalError                a journal cannot be opened, read or written
├── VerificationError           a webhook's signature is missing, wrong or too old
├── Refused                     a handler refused an HTTP request, with a status
│   └── InvalidBody             (ValueError) the request's body cannot be parsed
├── PoolError
│   ├── RemoteError             the called function raised an error in its worker process
│   ├── RemoteTraceback         its cause: the remote traceback, as text
│   ├── WorkerLost              the worker process died during the call
│   ├── PoolBusy                the pool's queue is full
│   ├── PoolFailed              (also WorkerFailed)
│   ├── PoolClosed              the pool is closed
│   └── SessionLost             the session's worker has exited
├── BridgeError
│   ├── NotLeader               a process that is not the leader tried to write
│   ├── NotPublished            the bus did not acknowledge an event in time
│   ├── Unpublishable           (ValueError) the bus can never carry this event
│   └── UnfitServer             the server is too old, or cannot set up what a bridge needs
└── FlowError
    ├── InvalidState
    ├── MissingDependencies     nothing provides what a task requires
    ├── AmbiguousDependency     several tasks provide what a task requires
    ├── StepFailed              a task, retry, revert or step of a workflow failed
    ├── FlowCancelled           the workflow was cancelled
    ├── WorkflowChanged         a workflow's code no longer matches its recorded steps
    └── ClaimLost               another owner has taken the job or flow

Each is also importable from the package that raises it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle._durations import in_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lifecycle._durations import Duration

__all__ = [
    "AmbiguousDependency",
    "BridgeError",
    "ClaimLost",
    "DoNotRestart",
    "Dropped",
    "FlowCancelled",
    "FlowError",
    "Interrupted",
    "InvalidBody",
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
    "Refused",
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
    "WorkflowChanged",
]


class LifecycleError(Exception):
    """The base class of all errors that this library raises."""


class NotHandled(LifecycleError):
    """No handler handled the event. If a handler raises this, the event goes to the next most specific route."""


class Dropped(NotHandled):
    """The event was deliberately dropped, and counted. It is not passed on to other routes."""

    #: True if a newer event replaced this event.
    superseded: bool = False
    #: True if the event was still queued, so its handler was not called.
    queued: bool = False


class InvalidTopic(NotHandled, ValueError):
    """A topic is empty or too long, has too many segments, or is not a string. No route can match it."""


class InvalidPattern(LifecycleError, ValueError):
    """A pattern cannot be parsed. The message shows the position."""


class RouteConflict(LifecycleError):
    """A name, or a pattern for the same topics, was registered twice. The message shows both locations."""


class RouteNotFound(LifecycleError, KeyError):
    """Nothing is registered under this pattern."""

    # KeyError would show the message as a repr, which is hard to read.
    def __str__(self) -> str:
        return Exception.__str__(self)


class RouterRunning(LifecycleError):
    """`Router.run` was called while the router was already running."""


class LaneFull(LifecycleError):
    """A lane is full. ``emit_nowait`` raises this.

    ``emit`` raises it only if the handler would otherwise wait for itself. The same applies when an event is passed on.
    """


class SourceFailed(LifecycleError):
    """A source could not start. The cause is the error that it raised."""


class SourceClosed(LifecycleError):
    """An event was passed to a source after ``close()`` was called."""


class UsageError(LifecycleError):
    """A command has the wrong arguments. If a command's handler raises this, it is logged as a single line."""


class Interrupted(LifecycleError):
    """The lifetime started to stop while the caller was waiting."""


class InvalidTransition(LifecycleError):
    """A state machine's table does not allow a transition."""


class WorkerFailed(LifecycleError):
    """A worker could not start, or failed with an error."""


class RestartLimitReached(LifecycleError):
    """A supervisor exceeded its restart limit. The cause is an exception group of the last errors."""


class DoNotRestart(LifecycleError):
    """Raised by a supervisor's child to prevent it from being restarted, regardless of its policy.

    If a child raises this while it starts, it has nothing to run, and the supervisor continues without it.
    """


class StopTree(LifecycleError):
    """Raised by a child to make the supervisors above it stop their other children, and then stop themselves."""


class JournalError(LifecycleError):
    """A journal is closed, or its file cannot be opened, read or written to. The message explains what to do."""


class VerificationError(LifecycleError):
    """A signature is missing, malformed, wrong or too old. The message never contains a secret."""


class Refused(LifecycleError):
    """Raised by a handler to refuse an HTTP request. It is logged as a warning, without a traceback.

    A `WebhookSource` that waits for its handler sends ``status`` and ``reason`` to the client. A refused message of an
    `Inbox` becomes a dead letter immediately, unless ``retry_after`` is given.

    Args:
        status: The status of the response, from 400 to 599.
        reason: The reason, which the client receives.
        retry_after: After how many seconds the client may try again.
        headers: Further headers of the response.

    Raises:
        ValueError: if ``status`` is not a status for errors, or ``retry_after`` is negative.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        *,
        retry_after: Duration | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, reason)
        if not 400 <= status <= 599:  # noqa: PLR2004  # the statuses for errors
            raise ValueError(f"status={status!r} is not a status for errors; use 400 to 599, such as 400 or 422")
        self.status: int = status
        self.reason: str = reason
        self.retry_after: float | None = None
        self.headers: dict[str, str] = dict(headers or {})
        if retry_after is not None:
            self.retry_after = in_seconds("retry_after", retry_after, least=0, finite=True)
            self.headers["Retry-After"] = str(max(1, -int(-self.retry_after // 1)))

    def __str__(self) -> str:
        return f"{self.status}, {self.reason}"


class InvalidBody(Refused, ValueError):
    """The body of a request cannot be parsed. `WebhookEvent.json` raises this, with status 400."""


class PoolError(LifecycleError):
    """The base class for pool errors."""


class RemoteError(PoolError):
    """The called function raised an error in its worker process. The cause contains the remote traceback.

    Args:
        type: The name of the exception's class, with its module unless that is ``builtins``.
        message: The exception's message.
        traceback: The remote traceback as text. Empty if there is none.
    """

    def __init__(self, type: str, message: str, traceback: str = "") -> None:  # noqa: A002  # its name is promised
        super().__init__(type, message, traceback)
        self.type = type
        self.message = message
        self.traceback = traceback
        # Python shows the cause before the error, so the remote traceback appears first.
        self.__cause__: BaseException | None = RemoteTraceback(traceback) if traceback else None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class RemoteTraceback(PoolError):
    """Another process's traceback, as text. It is the cause of a `RemoteError`, and is never raised directly."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class WorkerLost(PoolError):
    """The worker process died during the call.

    Args:
        message: A description of how the process exited.
        exit_code: The process's exit code, unless a signal killed it.
        signal: The number of the signal that killed it, if any.
        rss: The memory use in bytes that the process last reported, if any.
        stderr: The end of the process's standard error output.
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
    """The pool's queue is full."""


class PoolFailed(PoolError, WorkerFailed):
    """The pool gave up because its workers died faster than its restart limit allows. See the cause."""


class PoolClosed(PoolError):
    """The pool is closed or closing."""


class SessionLost(PoolError):
    """The session's worker has exited, so the session's state is lost."""


class BridgeError(LifecycleError):
    """The base class for bridge errors. It is raised directly if a connection is missing or permanently lost."""


class NotLeader(BridgeError):
    """A process that is not, or is no longer, the leader tried to write. The write was rejected or not sent."""


class NotPublished(BridgeError):
    """The bus did not acknowledge an event in time.

    If the bus did store the event, it recognises the ID when the event is sent again.
    """


class Unpublishable(BridgeError, ValueError):
    """The bus can never carry the event: its topic is too long, or its data is too large or not JSON."""


class UnfitServer(BridgeError):
    """The server is too old, or cannot set up what a bridge needs. The message explains what to do."""


class FlowError(LifecycleError):
    """The base class for errors from flows and jobs."""


class InvalidState(InvalidTransition, FlowError):
    """The table for a flow, task, retry or job does not allow a transition."""


class MissingDependencies(FlowError):
    """A task requires a name that nothing before it provides."""


class AmbiguousDependency(FlowError):
    """A task requires a name that several tasks provide."""


class StepFailed(FlowError):
    """A task, a retry, a revert or a step of a workflow failed.

    Args:
        text: The error's text.
        step: The name of the step.
        type: The name of the class of the step's error.
        message: The message of the step's error.
    """

    def __init__(self, text: str, *, step: str = "", type: str = "", message: str = "") -> None:  # noqa: A002  # its name is promised
        super().__init__(text)
        self.step = step
        self.type = type
        self.message = message


class FlowCancelled(FlowError):
    """The workflow was cancelled with `Flows.cancel`. Its undo steps have run."""


class WorkflowChanged(FlowError):
    """A workflow's function no longer matches its recorded steps.

    The workflow waits in the store for a process with the right function, or until you mend the function.
    """


class ClaimLost(FlowError):
    """Another owner has taken the job or flow. Any further writes by this process are rejected."""
