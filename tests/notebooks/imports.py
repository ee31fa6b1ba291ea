"""What a cell takes from the package."""

import ast

import kvcourse


def parse(source):
    """The syntax tree of a cell without its magics."""
    lines = [line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))]
    return ast.parse("\n".join(lines))


def modules_used(source):
    """Modules of kvcourse that a cell takes from; `kv.name` counts as the module that defines it."""
    used = set()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "kvcourse":
            used |= {_home_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            used |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in ("kv", "kvcourse"):
            used.add(_home_of(node.attr))
    return {name for name in used if name.startswith("kvcourse.")}


def _home_of(name):
    value = getattr(kvcourse, name, None)
    return getattr(value, "__module__", None) or getattr(value, "__name__", None) or f"kvcourse.{name}"
