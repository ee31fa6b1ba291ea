"""The top-level statements of a cell: what each one binds, reads and changes."""

import ast
import functools
import re
import symtable
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from kvcourse.course.grading.untrusted import short
from kvcourse.course.names import EVERY_NAME, base_name, names_of

MAX_CHARACTERS = 100_000  # of one cell: the tree of a source is hundreds of times its size
PYTHON_CELL_MAGICS = frozenset({"time", "timeit", "capture", "prun"})  # %%bash and others are not Python
_MUTATORS_OF_LISTS = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}
_MUTATORS_OF_SETS_AND_DICTS = {"add", "discard", "popitem", "setdefault", "update"}
MUTATORS = frozenset(_MUTATORS_OF_LISTS | _MUTATORS_OF_SETS_AND_DICTS)

_MAGIC_LINE = re.compile(r"^([ \t\f]*)(?:[%!?].*|[\w.]+\?{1,2}[ \t]*)$", re.M)
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPOUND = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.If,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)


class NotPython(ValueError):  # noqa: N818 - it says what the cell is
    """A cell that Python cannot compile, with the reason and its line."""


@dataclass(frozen=True)
class Statement:
    """One top-level statement. Names are those of the module; what is local to a function does not count.

    defines: the name, of a function or class. binds: names that it sets or deletes. reads: names that it may use, in
    functions too. at_once: those that it uses when it runs, not only when a function is called. changes: objects
    whose attribute or item it sets. mutates: objects that it changes by a call such as `x.append(…)`. surely: sets
    all that it binds, whatever happens, and from nothing older. unsolved: raises NotImplementedError somewhere.
    always: `from x import *` and `from __future__ import x`, whose effect no name shows.
    """

    node: type[ast.stmt]
    first_line: int
    source: str
    defines: str | None
    binds: frozenset[str]
    reads: frozenset[str]
    at_once: frozenset[str]
    changes: frozenset[str]
    mutates: frozenset[str]
    surely: bool
    unsolved: bool
    always: bool

    @property
    def is_expression(self) -> bool:
        return self.node is ast.Expr

    @property
    def deletes(self) -> bool:
        return self.node is ast.Delete

    @property
    def imports(self) -> bool:
        return issubclass(self.node, ast.Import | ast.ImportFrom)

    @property
    def is_compound(self) -> bool:
        return issubclass(self.node, _COMPOUND)


def statements_of(source: str) -> tuple[Statement, ...]:
    """The statements of a cell in order; lines that only IPython understands are left out. Errors: NotPython."""
    if len(source) > MAX_CHARACTERS:
        raise NotPython(f"{len(source):,} characters, more than {MAX_CHARACTERS:,}")
    found = _statements(source)
    if isinstance(found, str):
        raise NotPython(found)
    return found


@functools.lru_cache(maxsize=512)
def _statements(source: str) -> tuple[Statement, ...] | str:
    """The statements, or what is wrong: a reason is remembered too, since each test asks for it again."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    if (magic := _CELL_MAGIC.match(source)) and magic[1] not in PYTHON_CELL_MAGICS:
        return ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a learner's "\d" is not a warning of the grader
        try:
            tree = _tree(source)
            compile(tree, "cell", "exec", dont_inherit=True)
            return tuple(
                _statement(node, text)
                for node, text in _texts(tree, source)
                if not isinstance(node, ast.Pass)
            )
        except SyntaxError as error:
            return f"line {error.lineno}: {short(error.msg)}"
        except (RecursionError, MemoryError):
            return "it is nested too deeply"
        except (ValueError, OverflowError) as error:  # null bytes, half a surrogate pair, endless digits
            return short(error)


def _tree(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.parse(_MAGIC_LINE.sub(r"\1pass", source))


def _texts(tree: ast.Module, source: str) -> Iterator[tuple[ast.stmt, str]]:
    lines = source.split("\n")
    for node in tree.body:
        first, last = _first_line(node), node.end_lineno
        text = lines[first - 1 : last]
        text[-1] = text[-1].encode()[: node.end_col_offset].decode()
        if first == node.lineno:  # else it begins with a decorator, which stands alone on its line
            text[0] = text[0].encode()[node.col_offset :].decode()
        joined = "\n".join(text)
        try:
            ast.parse(joined)
        except SyntaxError:  # a magic inside a block
            joined = _MAGIC_LINE.sub(r"\1pass", joined)
        yield node, joined


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])


def _statement(node: ast.stmt, text: str) -> Statement:
    top = symtable.symtable(text, "cell", "exec")
    binds = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    at_once, changes, mutates = set(), set(), set()
    for part in _run_at_once(node):
        match part:
            case ast.Name(ctx=ast.Load()):
                at_once.add(part.id)
            case ast.NamedExpr():  # in a comprehension the table does not say it
                binds.add(part.target.id)
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                changes.add(base_name(part))
            case ast.Call(func=ast.Attribute(attr=method)) if method in MUTATORS:
                mutates.add(base_name(part.func))
    imports_from = isinstance(node, ast.ImportFrom)
    star = imports_from and any(alias.name == "*" for alias in node.names)
    return Statement(
        node=type(node),
        first_line=_first_line(node),
        source=text,
        defines=node.name if isinstance(node, _DEFINITIONS) else None,
        binds=frozenset(binds),
        reads=frozenset(_reads(node, text, top)),
        at_once=frozenset(at_once),
        changes=frozenset(changes - {None}),
        mutates=frozenset(mutates - {None}),
        surely=_binds_surely(node),
        unsolved=any(_raises_not_implemented(part) for part in ast.walk(node)),
        always=star or (imports_from and node.module == "__future__"),
    )


def _run_at_once(node: ast.AST) -> Iterator[ast.AST]:
    """The parts that run when the statement does: of a function its decorators and defaults, not its body."""
    todo = [node]
    while todo:
        part = todo.pop()
        yield part
        for name, value in ast.iter_fields(part):
            if not (name == "body" and isinstance(part, _FUNCTIONS)):
                todo += [
                    child for child in (value if isinstance(value, list) else [value]) if _is_node(child)
                ]


def _is_node(value: object) -> bool:
    return isinstance(value, ast.AST)


def _reads(node: ast.stmt, text: str, top: symtable.SymbolTable) -> set[str]:
    tables = [top]
    for table in tables:
        tables += table.get_children()
    symbols = [symbol for table in tables for symbol in table.get_symbols()]
    reads = {symbol.get_name() for symbol in symbols if symbol.is_declared_global()}  # x += 1 in a function
    try:
        return reads | names_of(text).read - {EVERY_NAME} | _class_reads(node)
    except (SyntaxError, ValueError, RecursionError):  # what Python reads but cannot write: a long hex
        return reads | {symbol.get_name() for symbol in symbols if not symbol.is_free()}


def _class_reads(node: ast.stmt) -> set[str]:
    """What a class body reads before it sets it: `D = D` there reads the D of the module."""
    if not isinstance(node, ast.ClassDef):
        return set()
    body = [_outside(part) for part in node.body if not isinstance(part, _FUNCTIONS)]
    reads = names_of(ast.unparse(ast.Module(body, []))).read
    return reads.union(*map(_class_reads, node.body))


def _binds_surely(node: ast.stmt) -> bool:
    """Not in a branch or loop, and no `x += 1`, no bare `x: int`, nor `import a.b`, which adds to an older `a`."""
    match node:
        case ast.Import():
            return not any("." in alias.name for alias in node.names)
        case ast.AnnAssign():
            return node.value is not None
        case _:
            return not isinstance(node, (*_COMPOUND, ast.Delete, ast.AugAssign))


def _outside(node: ast.stmt) -> ast.stmt:
    """A class without its body, which is looked at by itself: else one in many others is read many times."""
    if not isinstance(node, ast.ClassDef):
        return node
    kept = {name: value for name, value in ast.iter_fields(node) if name != "body"}
    return ast.ClassDef(**kept, body=[ast.Pass()])


def _raises_not_implemented(node: ast.AST) -> bool:
    if not isinstance(node, ast.Raise) or node.exc is None:
        return False
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
