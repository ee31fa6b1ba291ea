"""The course around the package: manifest, book, notebooks, public checks, student copies and the grader."""

from kvcourse.course.checks.check import CheckFailed, check
from kvcourse.course.checks.progress import progress

__all__ = ["CheckFailed", "check", "progress"]
