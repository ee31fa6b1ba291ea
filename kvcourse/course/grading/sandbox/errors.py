"""What can go wrong in a session, from the view of a test."""


class SandboxError(Exception):
    """The learner's code did not answer with a value."""


class StudentError(SandboxError):
    """The learner's code raised: `kind` is the type's name, `where` cites the innermost line of its own cells."""

    def __init__(self, kind: str, message: str, where: str = "") -> None:
        self.kind, self.message, self.where = kind, message, where
        super().__init__(f"{kind}: {message}" + (f" ({where})" if where else ""))

    def __reduce__(self) -> tuple:
        return StudentError, (self.kind, self.message, self.where)


class Stopped(SandboxError):  # noqa: N818 - it is what became of the session
    """The session ended before its time; `reason` says why, as the end of "the program …"."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Closed(SandboxError):  # noqa: N818
    """A value of a session was used after the session."""
