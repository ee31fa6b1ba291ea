"""The HTML page: sound, self-contained, readable, and it says what the record says."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from record_strategies import exercise, outcome, record, records
from strategies import FEW, MANY

from kvcourse.course.grading.plain_text import one_line, printable
from kvcourse.course.grading.record import number
from kvcourse.course.grading.report import report_html

VOID = {"meta", "link", "br", "img", "hr", "input"}
KNOWN = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "main",
        "footer",
        "section",
        "h1",
        "h2",
        "h3",
    ),
    *("p", "b", "div", "span", "ul", "li", "pre", "code"),
}


class Page(HTMLParser):
    """Tags, attributes and text of a page; checks that every element is closed in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.seen, self.attributes, self.ids, self.lines, self.pres = [], set(), [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "pre":
            self.pres.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        if "pre" in self.open:
            self.pres[-1] += data
        self.lines.append(data)

    @property
    def text(self):
        return one_line(" ".join(self.lines))


def page(some, **options):
    return Page(report_html(some, "The course", {"01_naive_cache": "The naive cache"}, **options))


@MANY
@given(records())
def test_page_is_sound_whatever_is_in_the_record(some):
    found = page(some)
    assert found.seen <= KNOWN
    assert not [value for name, value in found.attributes if name in ("src", "href", "onload", "onclick")]
    assert len(found.ids) == len(set(found.ids)) == len(some.exercises)
    report_html(some, "The course", {}).encode()


@FEW
@given(records())
def test_page_says_what_the_record_says(some):
    found = page(some)
    assert f"{one_line(some.name)} " in f"{found.text} "
    assert f"{some.earned} of {some.points} points" in found.text
    for part in some.exercises:
        assert f"{number(part.earned)} of {number(part.points)} points" in found.text
        shown = [o for o in part.outcomes if o.visibility == "visible" and o.outcome != "broken test"]
        for o in shown:
            assert one_line(printable(o.message)) in found.text
        for o in shown if len({(o.outcome, o.message) for o in shown}) > 1 else ():
            if o.hint.strip() and o.outcome == "failed":
                assert f"Hint: {one_line(o.hint)}" in found.text


def test_what_all_tests_say_is_said_once():
    same = [outcome(name, 1, "visible", "failed", "NameError: x", "Try") for name in ("a", "b", "c")]
    hidden = outcome("h", 1, "hidden", "failed", "NameError: y")
    found = page(record([exercise("ex-1-a", "01_naive_cache", [*same, hidden])]))
    assert found.pres == ["NameError: x"]
    assert "Hint" not in found.text
    other = outcome("d", 1, "visible", "failed", "NameError: z", "Other")
    found = page(record([exercise("ex-1-a", "01_naive_cache", [*same, other])]))
    assert found.pres == ["NameError: x"] * 3 + ["NameError: z"]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("passed", "✓ passed"),
        ("failed", "✗ failed"),
        ("stopped", "✗ stopped"),
        ("not run", "– not run"),
        ("broken test", "! not tested"),
    ],
)
def test_every_outcome_has_a_sign_and_a_word(result, words):
    found = page(
        record([exercise("ex-1-a", "01_naive_cache", [outcome("test_it_runs", 1, "visible", result)])])
    )
    assert f"{words} it runs" in found.text


def test_hidden_tests_are_one_line_of_points():
    hidden = [outcome(name, 1, "hidden", result) for name, result in (("a", "passed"), ("b", "failed"))]
    found = page(record([exercise("ex-1-a", "01_naive_cache", hidden)]))
    assert "hidden Tests that are not shown 1 of 2" in found.text
    assert found.text.count("hidden") == 1


def test_messages_keep_their_lines_and_hints_are_for_those_who_need_them():
    lines = "ZeroDivisionError: division by zero\n  in cell 63, line 2 <b>&amp;"
    found = page(
        record(
            [
                exercise(
                    "ex-1-a",
                    "01_naive_cache",
                    [
                        outcome("a", 1, "visible", "failed", lines, "Try"),
                        outcome("b", 1, "visible", "passed", "", "Not"),
                        outcome("c", 1, "visible", "stopped", "10 s of CPU time", "Not"),
                        outcome("d", 1, "visible", "not run", "its cell is missing", "Not"),
                    ],
                )
            ]
        )
    )
    assert found.pres == [lines, "10 s of CPU time", "its cell is missing"]
    assert "Hint: Try" in found.text
    assert "Not" not in found.text


def test_footer_says_where_it_ran_and_how_to_come_to_the_same_score():
    found = page(record(seed=77))
    assert "kvcourse 0.1.0 with seed 77" in found.text
    assert "Files: an empty folder. Network: a namespace of its own." in found.text
    assert "Nothing in this submission could be graded." in found.text


def test_the_same_record_gives_the_same_bytes():
    some = record([exercise("ex-1-a", "01_naive_cache", [outcome("a", 1, "visible", "passed")])])
    assert report_html(some, "C", {}) == report_html(some, "C", {})


# ---- readable: contrast as WCAG 2.2 (1.4.3) defines it ---------------------------------------------


def luminance(colour):
    digits = colour.lstrip("#")
    digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", range(3), ids=["light", "dark", "print"])
def test_text_has_contrast(scheme):
    blocks = re.findall(r":root \{(.*?)\}", report_html(record(), "C", {}), re.S)
    assert len(blocks) == 3
    colour = dict(re.findall(r"--(\w+): (#\w+)", blocks[scheme]))
    text = [
        ("text", "page"),
        ("soft", "page"),
        ("text", "card"),
        ("soft", "card"),
        ("good", "card"),
        ("bad", "card"),
    ]
    for front, back in [*text, ("text", "code"), ("text", "tip")]:
        assert contrast(colour[front], colour[back]) >= 4.5, (front, back)
    assert contrast(colour["fill"], colour["track"]) >= 3  # 1.4.11: the bar against its track
