"""What a test sees of the learner's objects: stand-ins that pass every use on to the child."""

from collections.abc import Callable
from typing import Any, NoReturn

Ask = Callable[..., Any]  # ask(operation, **parts): a request to the child


class Remote:
    """An object that stays in the child.

    Call it, read its attributes and items, take its length: plain data comes back as itself, anything else as another
    Remote. `fetch()` gives the value if it is plain data. It cannot be compared or tested for truth, so that no test
    takes it for a value. Errors: StudentError, Stopped and Closed, of every use.
    """

    __slots__ = ("_ask", "_handle", "_kind")

    def __init__(self, ask: Ask, handle: int, kind: str) -> None:
        self._ask, self._handle, self._kind = ask, handle, kind

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._ask("call", target=self._handle, arguments=(arguments, keywords))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python and pytest look for these on any object
            raise AttributeError(name)
        return self._ask("attribute", target=self._handle, name=name)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", target=self._handle, key=key)

    def __len__(self) -> int:
        return self._ask("length", target=self._handle)

    def fetch(self) -> Any:
        """The value, if it is plain data; else the Remote of the same object."""
        return self._ask("fetch", target=self._handle)

    def __repr__(self) -> str:
        return f"<a {self._kind} object of the learner>"

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            f"{self!r} stays in its process: fetch() it before it is compared, tested or looped over"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __iter__ = __contains__ = _refuse
    __hash__ = __index__ = __int__ = __float__ = _refuse


def handle_of(value: Any) -> int:
    """The number by which the child knows a Remote."""
    return object.__getattribute__(value, "_handle")


def kind_of(value: Any) -> str:
    """The name of the type that the object has in the child, as the child says."""
    return object.__getattribute__(value, "_kind")


class Names:
    """What the learner's program defines: `names.packed_positions` is the Remote of that function."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def __getattr__(self, name: str) -> Remote:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("name", name=name)
