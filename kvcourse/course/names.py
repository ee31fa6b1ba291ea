"""Which module-level names a cell reads, sets and may change: enough to tell what depends on a solution."""

import ast
import re
import symtable
from dataclasses import dataclass, field

_MAGIC = re.compile(r"^(\s*)[%!].*$", re.M)
_IDENTIFIER = re.compile(r"[^\W\d]\w*")


@dataclass
class Names:
    """Names of one cell. All are module-level; what is local to a function or comprehension does not count.

    read: used before the cell has surely set them. stored: set, perhaps only in a branch. surely: set whatever
    happens. imported: bound by an import. touched: objects that the cell may change in place.
    """

    read: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    surely: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)


def names_of(source: str) -> Names:
    """The names of a cell's source; every word in the line of a magic counts as read. Errors: SyntaxError."""
    names = Names()
    tree = parse(source)
    for line in _magics(source):
        names.read |= set(_IDENTIFIER.findall(line))
    names.surely = _walk(tree.body, set(), names)
    for node in ast.walk(tree):
        assigns = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
        calls = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if assigns or calls:  # x.y = …, x[i] = …, x.append(…)
            names.touched.add(_base_name(node.func if calls else node))
    names.touched &= names.read | names.stored
    return names


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
            read, stored, imported = _symbols(node)
            names.read |= read - known
            names.stored |= stored
            names.imported |= imported
            known |= stored
        bound = _symbols(ast.Assign([target], ast.Constant(0), lineno=1))[1] if target else set()
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


def _symbols(node: ast.AST) -> tuple[set[str], set[str], set[str]]:
    """(read, stored, imported) of a statement or expression, by the compiler's own scoping rules."""
    tables = [symtable.symtable(ast.unparse(node), "cell", "exec")]
    read, stored, imported = set(), set(), set()
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        read.add(node.target.id)  # x += 1 reads x, which the table does not say
    while tables:
        table = tables.pop()
        tables += table.get_children()
        top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (top or symbol.is_global()):
                read.add(symbol.get_name())
            if (symbol.is_assigned() or symbol.is_imported()) and (top or symbol.is_declared_global()):
                stored.add(symbol.get_name())
            if symbol.is_imported() and top:
                imported.add(symbol.get_name())
    return read, stored, imported


def _base_name(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
