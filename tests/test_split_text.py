"""Text to train on and text to measure on: they must not overlap, and between them nothing may get lost."""

import re
from pydoc_data.topics import topics

import pytest

from kvcourse.errors import InputError
from kvcourse.text import split_text

SETTINGS = [(0.15, 0), (0.15, 1), (0.3, 2)]


def long_paragraphs(text):
    found = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return [part for part in found if len(part) >= 60]


@pytest.mark.parametrize(("share", "seed"), SETTINGS)
def test_no_paragraph_is_on_both_sides_or_twice_on_one(share, seed):
    parts = split_text(share, seed)
    train, held_out = long_paragraphs(parts.train), long_paragraphs(parts.held_out)
    assert len(train) == len(set(train))
    assert len(held_out) == len(set(held_out))
    assert set(train) & set(held_out) == set()


@pytest.mark.parametrize(("share", "seed"), SETTINGS)
def test_almost_no_run_of_fifty_characters_is_on_both_sides(share, seed):
    """Topics that quote each other have whole pages in common."""
    parts = split_text(share, seed)
    known = {parts.train[i : i + 50] for i in range(len(parts.train) - 49)}
    held_out = [parts.held_out[i : i + 50] for i in range(0, len(parts.held_out) - 49, 10)]
    assert sum(run in known for run in held_out) < 0.02 * len(held_out)


@pytest.mark.parametrize(("share", "seed"), SETTINGS)
def test_every_topic_and_every_paragraph_is_somewhere(share, seed):
    parts = split_text(share, seed)
    assert sorted(parts.train_topics + parts.held_out_topics) == sorted(topics)
    everything = set(long_paragraphs(parts.train) + long_paragraphs(parts.held_out))
    assert {part for text in topics.values() for part in long_paragraphs(text.strip())} == everything


@pytest.mark.parametrize(("share", "seed"), SETTINGS)
def test_the_share_is_kept_as_nearly_as_topics_allow(share, seed):
    parts = split_text(share, seed)
    held_out = len(parts.held_out) / (len(parts.held_out) + len(parts.train))
    assert share - 0.02 < held_out <= share + 0.001


def test_the_seed_alone_decides():
    assert split_text() == split_text()
    assert split_text(seed=1).held_out_topics != split_text().held_out_topics


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, True, "half", None, float("nan")])
def test_a_share_without_sense_is_refused(share):
    with pytest.raises(InputError, match="share="):
        split_text(share)
