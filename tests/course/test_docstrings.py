"""Docstrings become valid reStructuredText whatever they hold."""

import io

import docutils.core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcourse.course.docstrings import to_rst


def render(text: str) -> tuple[str, str]:
    """(pseudo-XML, warnings) of a docstring."""
    warnings = io.StringIO()
    settings = {"warning_stream": warnings, "report_level": 1, "file_insertion_enabled": False}
    xml = docutils.core.publish_string(to_rst(text), writer="pseudoxml", settings_overrides=settings).decode()
    return xml, warnings.getvalue()


def test_parameters_become_a_list():
    xml, warnings = render(
        "Do it.\n\n    k, v: keys and `values`, (B)\n        and more.\n    x: *one* **kwargs.\n\n    Prose again."
    )
    assert warnings == ""
    assert xml.count("<list_item>") == 2
    assert xml.count("<literal>") == 4
    assert "<emphasis>" not in xml


def test_names_and_colons_in_running_text_stay_prose():
    xml, warnings = render("Do it.\n\n    n: how many there are. m: those that\n    fit. All of them.")
    assert warnings == ""
    assert "<list_item>" not in xml


def test_a_drawing_stays_as_it_is():
    xml, warnings = render("Shape:\n\n        a | b\n        --+--\n        * | c_\n\n    end")
    assert warnings == ""
    assert "<literal_block" in xml
    assert "--+--" in xml


@pytest.mark.parametrize(
    "text",
    [
        "x_ and H_kv_",
        "a `b`s",
        "2 * 3 * 4",
        "|x|",
        "`open",
        "*args",
        "- a\n  b\n- c\nd",
        "n: a\nb",
        "a::",
        "",
    ],
)
def test_characters_of_the_markup(text):
    assert render(text)[1] == ""


words = st.sampled_from(
    ["a", "x_", "*b", "c*", "`d`", "`e", "|f|", "n:", "**g**", "(T, D)", "h\\", "2 ×", "_i", "`j`s"]
)
line = st.tuples(
    st.sampled_from(["", "", "- ", "* ", "name: ", "a, b: ", "  "]), st.lists(words, min_size=1, max_size=5)
)
paragraph = st.lists(line.map(lambda parts: parts[0] + " ".join(parts[1])), min_size=1, max_size=4).map(
    "\n".join
)


@given(st.lists(paragraph, min_size=1, max_size=3).map("\n\n".join))
def test_no_docstring_makes_a_warning(text):
    xml, warnings = render("First line.\n\n" + text)
    assert warnings == "", to_rst(text)
    assert "system_message" not in xml
