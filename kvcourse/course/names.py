"""Which module-level names a cell reads, sets and may change: enough to tell what depends on a solution."""

import ast
import re
import symtable
from dataclasses import dataclass, field

_MAGIC = re.compile(r"^([ \t\f]*)[%!].*$", re.M)  # \s would run over all blank lines, from each of them
_IDENTIFIER = re.compile(r"[^\W\d]\w*")

EVERY_NAME = "*"  # in `read`: the cell can see names that it does not spell, as `globals()` does
_SEES_ALL = frozenset({"locals", "globals", "eval", "exec", "get_ipython", "In", "Out", "__main__"})
_SEES_ALL_BARE = frozenset({"dir", "vars"})  # without an argument
_SEES_ALL_DOTTED = frozenset(
    {"sys.modules", "sys._getframe", "gc.get_objects", "inspect.stack", "inspect.currentframe"}
)
_SEES_ALL_MAGICS = frozenset(
    {"who", "whos", "who_ls", "history", "hist", "recall", "rerun", "macro", "save", "store"}
    | {"notebook", "logstart", "run", "debug", "tb"}
)
_COMPREHENSIONS = frozenset({"genexpr", "listcomp", "setcomp", "dictcomp"})  # they run where they stand
_LAST_VALUES = re.compile(r"_{1,3}|_i{1,3}|_[io]h|_i?\d+")


@dataclass
class Names:
    """Names of one cell. All are module-level; what is local to a function or comprehension does not count.

    read: used before the cell has surely set them. stored: set, perhaps only in a branch. surely: set whatever
    happens. imported: bound by an import. touched: objects that the cell may change in place. changed: those of
    them whose attributes or items it sets itself. deferred: what functions made here read when they are called.
    """

    read: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    surely: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    deferred: set[str] = field(default_factory=set)


def names_of(source: str) -> Names:
    """The names of a cell's source; every word in the line of a magic counts as read. Errors: SyntaxError."""
    names = Names()
    tree = parse(source)
    for line in _magics(source):
        words = _IDENTIFIER.findall(line)
        names.read |= set(words) | ({EVERY_NAME} if words and words[0] in _SEES_ALL_MAGICS else set())
    names.surely = _walk(tree.body, set(), names)
    for node in ast.walk(tree):
        assigns = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
        calls = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if isinstance(node, ast.With | ast.AsyncWith):  # with output: …
            names.touched |= {base_name(item.context_expr) for item in node.items}
        if assigns or calls:  # x.y = …, x[i] = …, x.append(…)
            names.touched.add(base := base_name(node.func if calls else node))
            names.changed |= {base} if assigns else set()
        if _sees_all(node):
            names.read.add(EVERY_NAME)
    if any(name in _SEES_ALL or _LAST_VALUES.fullmatch(name) for name in names.read):
        names.read.add(EVERY_NAME)
    names.deferred |= names.read & {EVERY_NAME}  # perhaps in a function: not told apart
    names.touched &= names.read | names.stored
    names.changed &= names.touched
    return names


def _sees_all(node: ast.AST) -> bool:
    """True for an expression, or an import, through which any name can be reached."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name in _SEES_ALL_BARE and not node.args
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return f"{name}.{attribute}" in _SEES_ALL_DOTTED
        case ast.Import():
            return any(alias.name == "__main__" for alias in node.names)
    return False


def parse(source: str) -> ast.Module:
    """The syntax tree of a cell, with `pass` for each line that is a magic. Errors: SyntaxError."""
    return ast.parse(_MAGIC.sub(r"\1pass", source) if _magics(source) else source)


def _magics(source: str) -> list[str]:
    """Lines that only IPython understands. In valid Python a line may begin with % too, inside brackets."""
    try:
        ast.parse(source)
    except SyntaxError:
        return [match[0] for match in _MAGIC.finditer(source)]
    return []


def _walk(statements: list[ast.stmt], known: set[str], names: Names) -> set[str]:
    """Follow statements in order; `known` is set already. Returns what is surely set after them."""
    known = set(known)
    for statement in statements:
        headers, target, blocks = _parts(statement)
        for node in headers:
            found = _symbols(node)
            names.read |= found.read - known
            names.stored |= found.stored
            names.imported |= found.imported
            names.deferred |= found.deferred
            if not isinstance(statement, ast.Match):  # what a case sets, it may not set
                known |= found.surely
        bound = _symbols(ast.Assign([target], ast.Constant(0), lineno=1)).stored if target else set()
        names.stored |= bound
        after = [_walk(block, known | bound, names) for block in blocks]
        if isinstance(statement, ast.With | ast.AsyncWith):
            known = after[0]
        elif isinstance(statement, ast.If):
            known = after[0] & after[1]
    return known


def _parts(statement: ast.stmt) -> tuple[list[ast.AST], ast.expr | None, list[list[ast.stmt]]]:
    """What a statement runs first, what a loop binds, and the blocks that it may run."""
    match statement:
        case ast.For() | ast.AsyncFor():
            return [statement.iter], statement.target, [statement.body, statement.orelse]
        case ast.While() | ast.If():
            return [statement.test], None, [statement.body, statement.orelse]
        case ast.With() | ast.AsyncWith():
            header = ast.With(statement.items, [ast.Pass()], type_comment=None, lineno=1)
            return [header], None, [statement.body]
        case ast.Try() | ast.TryStar():
            handlers = [handler.body for handler in statement.handlers]
            return [], None, [statement.body, *handlers, statement.orelse, statement.finalbody]
        case _:
            return [statement], None, []


def _symbols(node: ast.AST) -> Names:
    """The names of one statement or expression, by the compiler's own scoping rules."""
    tables = [symtable.symtable(ast.unparse(node), "cell", "exec")]
    found = Names()
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        found.read.add(node.target.id)  # x += 1 reads x, which the table does not say
    while tables:
        table = tables.pop()
        tables += table.get_children()
        top = table.get_type() == "module"
        is_function = table.get_type() == "function" and table.get_name() not in _COMPREHENSIONS
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if symbol.is_referenced() and (top or symbol.is_global()):
                found.read.add(name)
                found.deferred |= {name} if is_function else set()
            if (symbol.is_assigned() or symbol.is_imported()) and (top or symbol.is_declared_global()):
                found.stored.add(name)
                found.surely |= {name} if top else set()
            if symbol.is_imported() and top:
                found.imported.add(name)
    return found


def base_name(node: ast.AST) -> str | None:
    """The name at the start of `x.y[0].z`; None if it starts with something else, such as a call."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
