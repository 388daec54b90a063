"""A release's own modules, executed from source beside the process: nothing outside these namespaces is read from or written to."""
