"""The style of the figures: legible colours, alternative texts, the same bytes every time."""

import itertools
import subprocess
import sys

import pytest

from kvcourse.errors import InputError
from kvcourse.figures import style
from kvcourse.figures.alt_text import AltText

TOGETHER = (("k", "v", "q"), ("ours", "baseline", "floor"), ("weights", "cache"))


@pytest.mark.parametrize("color", style.TEXT_COLORS)
def test_text_reads_on_paper(color):
    for ground in (style.PAPER, style.PALE):
        assert style.contrast(color, ground) >= 4.5  # WCAG 2.2, 1.4.3


@pytest.mark.parametrize("role", sorted(style.COLORS))
def test_text_reads_on_every_fill(role):
    color = style.COLORS[role]
    assert style.contrast(style.text_on(color), color) >= 4.5


@pytest.mark.parametrize("role", sorted(style.LINES))
def test_lines_stand_out_from_paper(role):
    assert (
        style.contrast(style.COLORS[role], style.PAPER) >= 2.9
    )  # WCAG 2.2, 1.4.11 asks 3; dashes and markers help


@pytest.mark.parametrize("roles", TOGETHER)
def test_roles_drawn_together_differ_in_lightness(roles):
    for first, second in itertools.combinations(roles, 2):
        assert style.contrast(style.COLORS[first], style.COLORS[second]) >= 1.25


def test_lines_differ_without_colour():
    looks = [(look["linestyle"], look["marker"]) for look in style.LINES.values()]
    assert len(set(looks)) == len(looks)
    assert len({dashes for dashes, _ in looks}) == len(looks)


def test_contrast_of_known_colours():
    assert style.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert style.contrast("#767676", "#FFFFFF") == pytest.approx(4.54, abs=0.01)  # the well-known AA grey


def test_unknown_line_role_is_refused():
    with pytest.raises(InputError, match="no line style for role 'thick'"):
        style.line("thick")


@pytest.mark.parametrize("alt", ["", "  \n", None])
def test_show_refuses_a_figure_without_alternative_text(alt):
    fig, _ = style.figure()
    with pytest.raises(InputError, match="no alternative text"):
        style.show(fig, alt)


def test_show_stores_the_alternative_text(monkeypatch):
    shown = {}
    monkeypatch.setattr("IPython.display.display", lambda data, **rest: shown.update(data=data, **rest))
    fig, ax = style.figure()
    ax.plot([1, 2], [3, 4])
    style.show(fig, alt="A line that rises.")
    assert shown["data"]["text/plain"] == "A line that rises."
    assert shown["metadata"]["image/png"]["alt"] == "A line that rises."
    assert shown["raw"] is True


def test_show_closes_a_pyplot_figure(monkeypatch):
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    monkeypatch.setattr("IPython.display.display", lambda *_, **__: None)
    fig = pyplot.figure()
    style.show(fig, alt="Nothing yet.")
    assert not pyplot.fignum_exists(fig.number)


def test_use_sets_the_style_for_the_readers_own_plots():
    import matplotlib as mpl

    with mpl.rc_context():
        style.use()
        assert mpl.rcParams["font.size"] == style.FONT_PT
        assert mpl.rcParams["axes.spines.top"] is False


class Renderer:
    """Stands in for myst-nb's renderer: a docutils node behaves like a dict here."""

    def render_image(self, data):
        return [{"uri": "a.png"}]

    render_image_inline = render_image


class Output:
    def __init__(self, mime_type, metadata):
        self.mime_type, self.output_metadata = mime_type, metadata


@pytest.mark.parametrize("inline", [False, True])
def test_the_book_gets_the_alternative_text(inline):
    output = Output("image/png", {"image/png": {"alt": "A line."}})
    assert AltText.handle_mime(Renderer(), output, inline) == [{"uri": "a.png", "alt": "A line."}]


@pytest.mark.parametrize(
    "output",
    [
        Output("image/png", {}),
        Output("text/plain", {"text/plain": {"alt": "x"}}),
        Output("image/png", {"image/png": {}}),
    ],
)
def test_other_outputs_are_left_to_the_book(output):
    assert AltText.handle_mime(Renderer(), output, False) is None


def test_matplotlib_is_only_imported_to_draw():
    program = (
        "import sys, kvcourse, kvcourse.figures.style, kvcourse.figures.charts, kvcourse.figures.concepts;"
        "sys.exit('matplotlib' in sys.modules or 'anywidget' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0
