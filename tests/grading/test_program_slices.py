"""Which statements of a notebook an exercise needs, and that errors still name the right line."""

import textwrap
import traceback

import pytest
from test_program_cells import ID, call, code, labels, own, program

TEST = code("twice(1)", "public-test", id=ID)


def sources(*cells, names=("twice",)) -> list[str]:
    return [piece.source for piece in program(*cells, names=names).pieces]


# ---- what is needed --------------------------------------------------------------------------------


def test_only_what_the_function_reads():
    assert sources(
        code("import torch, math\nimport os\nmodel = load()\nprint(model)"),
        code("factor = math.floor(2.5)\nother = model.size"),
        own("def twice(x):\n    return scale(x)\n\ntwice(3)"),
        code("experiment = twice(4)"),
        code("def scale(x): return factor * x"),
    ) == [
        "import torch, math",
        "factor = math.floor(2.5)",
        "def twice(x):\n    return scale(x)",
        "def scale(x): return factor * x",
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "import helper", "import helper.sub", "import x as helper", "from x import helper",
        "from x import y as helper",
        "def helper(): pass", "async def helper(): pass", "class helper: pass", "helper = 1", "helper: int = 1",
        "a = helper = 1", "a, (helper, *b) = 1, (2, 3)", "[a, *helper] = 1, 2", "helper += 1", "helper.x = 1",
        "helper[0] = 1", "helper[0].x[1] += 1", "del helper.x", "for helper in (1,): pass",
        "for i in (1,):\n    helper = i", "while True:\n    helper = 1\n    break", "if 1:\n    helper = 1",
        "if 0: pass\nelse:\n    import helper", "try:\n    helper = 1\nfinally:\n    pass",
        "with open('x') as helper: pass", "match 1:\n    case helper: pass", "x = (helper := 3)",
        "x = [helper := y for y in (1, 2)]", "for i in (1, 2):\n    helper.append(i)",
    ],
)  # fmt: skip
def test_every_kind_of_statement_that_binds_or_changes_a_name(statement):
    found = sources(
        code(statement), code(statement.replace("helper", "unused")), own("def twice(x): return helper")
    )
    assert found == [statement, "def twice(x): return helper"]


@pytest.mark.parametrize(
    "statement",
    [
        "helper", "helper.append(3)", "print(helper)", "'''helper'''", "assert helper", "pass", "(helper := 3)",
        "other = helper", "def other(helper): helper = 1", "def other():\n    helper[0] = 1",
        "for i in helper: print(i)",
        "class other:\n    helper = 1", "x = [helper for helper in (1, 2)]", "f = lambda helper: helper",
    ],
)  # fmt: skip
def test_what_only_uses_a_name_is_left_out(statement):
    assert sources(code(statement), own("def twice(x): return helper")) == ["def twice(x): return helper"]


@pytest.mark.parametrize(
    "exercise",
    [
        "def twice(x, y=needed): return x", "def twice(x: needed): return x", "@needed\ndef twice(x): return x",
        "def twice(x):\n    def inner(): return needed\n    return inner()", "class twice(needed): pass",
        "class twice:\n    needed = needed", "class twice:\n    def f(self): return needed",
        "class twice:\n    class inner:\n        needed = needed", "twice = lambda x: [needed for _ in x]",
        "def twice(x):\n    global needed\n    needed += 1", "async def twice(x): return await needed",
        "twice = 0x" + "f" * 4000 + " + needed",
    ],
)  # fmt: skip
def test_every_place_where_a_name_is_read(exercise):
    assert sources(code("needed = 1\nunneeded = 2"), own(exercise)) == ["needed = 1", exercise]


def test_a_loop_does_not_need_what_else_has_its_variable():
    cells = [
        code("for i in range(9):\n    experiment(i)"),
        code("table = {}\nfor i in range(3):\n    table[i] = 2 * i"),
    ]
    found = program(*cells, own("def twice(x): return table.get(x)"))
    assert labels(found) == ["cell 1", "cell 1", "cell 2"]
    assert call(found, argument=2) == 4


def test_methods_that_are_added_later_in_the_chapter():
    cells = [
        code("class Cache: pass"),
        code("def append(self): pass\nCache.append = append\nCache().append()"),
    ]
    assert sources(*cells, own("def twice(x): return Cache()"))[:-1] == [
        "class Cache: pass",
        "def append(self): pass",
        "Cache.append = append",
    ]


def test_star_and_future_imports_always_count():
    cells = [
        code("from __future__ import annotations\nfrom math import *\nimport os"),
        own("def twice(x): return pi"),
    ]
    assert sources(*cells)[:-1] == ["from __future__ import annotations", "from math import *"]


def test_a_call_in_a_loop_does_not_change_a_module():
    cells = [
        code("import torch\nfor i in range(3):\n    torch.add(experiment)"),
        own("def twice(x): return torch"),
    ]
    assert sources(*cells) == ["import torch", "def twice(x): return torch"]


def test_a_bare_call_that_fills_a_list_is_noted():
    found = program(code("table = []\ntable.append(3)"), own("def twice(x): return table"))
    assert found.notes == (f"{ID}: cell 0 changes table by a call, which is not run; only definitions are",)


# ---- what never counts -----------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["public-test", "hidden-test"])
def test_cells_of_tests_never_count(tag):
    assert sources(code("helper = 1", tag), own("def twice(x): return helper")) == [
        "def twice(x): return helper"
    ]


@pytest.mark.parametrize(
    "source",
    [
        "helper = (",
        "%%bash\nhelper = 1",
        "%%writefile x.py\nhelper = 1",
        "helper = 1\nx = = 2",
        "\x00helper = 1",
    ],
)
def test_cells_that_are_not_python_never_count(source):
    assert sources(code(source), own("def twice(x): return helper")) == ["def twice(x): return helper"]


def test_text_never_counts():
    assert len(sources(code("helper = 1", kind="markdown"), own("def twice(x): return helper"))) == 1


# ---- magics ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", ["%time x = 1", "!ls -l", "twice?", "twice??", "?twice", "%%time"])
def test_magics_are_ignored(magic):
    assert sources(own(f"{magic}\nhelper = 1\ndef twice(x): return helper")) == [
        "helper = 1",
        "def twice(x): return helper",
    ]


def test_a_magic_in_a_block_and_a_percent_sign_in_a_text():
    exercise = "def twice(x):\n    %time y = 2 * x\n    return 2 * x"
    text = 'template = """\n%d times\n"""'
    found = program(own(f"{exercise}\n{text}\n"), code(""), names=("twice", "template"))
    assert call(found) == 8
    assert found.pieces[1].source == text


# ---- the same name several times -------------------------------------------------------------------


def test_bindings_up_to_the_public_test_count_in_order():
    cells = [
        code("k = 1"),
        code("k = k + 1"),
        own("def twice(x): return k * x"),
        code("k = 3"),
        TEST,
        code("k = 9"),
    ]
    assert labels(program(*cells)) == ["cell 0", "cell 1", "cell 2", "cell 3"]
    assert call(program(*cells)) == 12
    assert call(program(*cells[:4])) == 8, "without a test behind it, bindings up to the exercise count"


def test_later_cells_count_for_names_that_nothing_before_binds():
    cells = [
        own("def twice(x): return f(x)"),
        TEST,
        code("def f(x): return g * x"),
        code("g = 2"),
        code("del g, f"),
    ]
    assert labels(program(*cells)) == ["cell 0", "cell 2", "cell 3"]
    assert call(program(*cells)) == 8


def test_a_built_in_name_is_not_looked_for_behind():
    cells = [own("def twice(x): return sum([x, x])"), TEST, code("sum = 3")]
    assert labels(program(*cells)) == ["cell 0"]


def test_a_later_star_import_counts_where_a_name_is_missing():
    cells = [own("def twice(x): return floor(2 * x)"), TEST, code("from math import *")]
    assert call(program(*cells)) == 8
    assert labels(program(own("def twice(x): return x"), *cells[1:])) == ["cell 0"]


def test_a_second_version_before_the_test_is_what_the_learner_saw():
    found = program(own("def twice(x): return x"), code("def twice(x): return 2 * x"), TEST)
    assert call(found) == 8
    assert found.notes == (f"{ID}: cell 1 defines twice again, before its test",)


def test_an_older_version_is_left_out_unless_something_needs_it():
    old = code("def twice(x): return heavy_experiment(x)\nheavy_experiment = load()")
    assert labels(program(old, own("def twice(x): return 2 * x"))) == ["cell 1"]
    cells = [code("def twice(x): return x + x"), code("two = twice(1)"), own("def twice(x): return two * x")]
    assert labels(program(*cells)) == ["cell 0", "cell 1", "cell 2"]
    assert call(program(*cells)) == 8
    cells = [code("class twice: pass"), own("class twice(twice): pass")]
    assert labels(program(*cells)) == ["cell 0", "cell 1"]


@pytest.mark.parametrize(
    "anew", ["from functools import cache", "import functools as cache", "cache = 1", "def cache(f): pass"]
)
def test_what_was_bound_before_a_name_is_bound_anew_is_left_out(anew):
    solution = "def twice(x):\n    return cache(x)"
    assert sources(code("model = load()"), code("cache = model.cache()"), code(anew), own(solution)) == [
        anew,
        solution,
    ]


@pytest.mark.parametrize(
    "between",
    [
        ("def early(): return cache", "cache = early()"),  # a function that may be called before
        ("other = cache", "cache = other + 1"),
        ("cache = cache + 1",),
        ("cache += 1",),
        ("cache: int",),
        ("if True:\n    cache = 2",),
        ("cache.x = 1",),
    ],
)
def test_what_was_bound_before_stays_where_something_still_needs_it(between):
    solution = "def twice(x):\n    return cache * x"
    assert sources(code("cache = 1"), *map(code, between), own(solution)) == ["cache = 1", *between, solution]


def test_a_submodule_does_not_replace_its_package():
    cells = ("import xml.dom", "import xml.sax"), own("def twice(x):\n    return xml.dom, xml.sax")
    assert sources(*map(code, cells[0]), cells[1])[:2] == ["import xml.dom", "import xml.sax"]


def test_a_name_that_is_deleted_and_set_again():
    cells = [code("k = 1\ndel k\nk = 2"), own("def twice(x): return k * x")]
    assert call(program(*cells)) == 8


# ---- where a piece comes from ----------------------------------------------------------------------


def test_lines_of_pieces_are_those_of_the_cell():
    cell = (
        "import functools\n\n# é\nx = 'é'; y = x + 'ß'; print(y)\n@functools.cache\n@functools.cache\ndef twice(x):\n"
        "    return y"
    )
    pieces = program(own(cell.replace("\n", "\r\n"))).pieces
    assert [(piece.first_line, piece.source) for piece in pieces] == [
        (1, "import functools"),
        (4, "x = 'é'"),
        (4, "y = x + 'ß'"),
        (5, "@functools.cache\n@functools.cache\ndef twice(x):\n    return y"),
    ]


@pytest.mark.parametrize("separator", ["\x0c", "\x1c", "\u2028", "\x85"])
def test_only_python_decides_what_a_line_is(separator):
    pieces = program(own(f"x = '''a{separator}b'''\ny = x\ndef twice(x):\n    return y")).pieces
    assert [piece.first_line for piece in pieces] == [1, 2, 3]
    assert pieces[0].source == f"x = '''a{separator}b'''"


def test_an_error_names_the_line_of_the_cell():
    cell = textwrap.dedent("""\
        import math
        print("experiment")


        def twice(x):
            y = math.floor(x)
            return y / 0
        """)
    piece = program(own(cell)).pieces[1]
    space = {"math": __import__("math")}
    exec(compile("\n" * (piece.first_line - 1) + piece.source, piece.label, "exec"), space)
    with pytest.raises(ZeroDivisionError) as caught:
        space["twice"](3)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == ("cell 0", cell.splitlines().index("    return y / 0") + 1)


def test_the_learners_warnings_are_not_shown(recwarn):
    program(own("def twice(x):\n    return '\\d' if x is 3 else 1"))
    assert len(recwarn) == 0
