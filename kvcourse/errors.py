"""Errors that a user can act on."""


class InputError(ValueError):
    """Bad input from the user: the message says what was wrong, what was expected and what to do.

    The command line prints it as one line on stderr and exits with code 2.
    """


class PoolExhausted(InputError):  # noqa: N818 - a state that callers wait out, as much as an error
    """No block is free: nothing was allocated. A scheduler preempts or waits; a user gives a larger pool."""
