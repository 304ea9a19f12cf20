"""One application in four web frameworks: a request emits an event, and a worker runs in the background."""
