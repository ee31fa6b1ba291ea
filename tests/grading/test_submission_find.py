"""Which paths are submissions, and what they are called."""

from pathlib import Path

import pytest
from handed_in import FIRST, SECOND, chapter, only_note, write, zipped

from kvcourse.course.grading.submission import find_submissions
from kvcourse.errors import InputError

BOOK = chapter(FIRST)
STEMS = ("00_first", "01_second")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name says nothing."""
    return tmp_path / "handed_in"


def found(*paths: Path) -> dict[str, Path]:
    """Name -> path, after checking that no name comes twice."""
    pairs = find_submissions(list(paths), STEMS)
    assert pairs == sorted(pairs)
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_a_notebook_a_zip_and_a_folder_of_notebooks(folder):
    write(folder, {"alice.ipynb": BOOK, "bob/work.ipynb": BOOK})
    zipped(folder / "carol.v2.zip", {"work.ipynb": BOOK})
    paths = [folder / name for name in ("carol.v2.zip", "bob", "alice.ipynb")]
    assert found(*paths) == {"alice": paths[2], "bob": paths[1], "carol.v2": paths[0]}


def test_a_folder_of_submissions(folder):
    write(
        folder,
        {"bob/deep/down/work.ipynb": BOOK, "dora/nothing.txt": b"", "kim.pdf": b"%PDF", "erin.tar.gz": b""},
    )
    zipped(folder / "carol.zip", {})
    names = {
        "bob": "bob",
        "dora": "dora",
        "carol": "carol.zip",
        "erin.tar": "erin.tar.gz",
        "kim.pdf": "kim.pdf",
    }
    assert found(folder) == {name: folder / file for name, file in names.items()}
    assert "is neither a notebook nor a zip" in only_note(folder / "kim.pdf")  # a row, and not nothing


CHAPTERS = [
    "00_first.ipynb", "01_second.1a2b3c4d.IPYNB", "00_First-Copy1.ipynb", "00_first (1).ipynb",
    "00_first - Copy.ipynb", "00_first copy 2.ipynb",
]  # fmt: skip
like_a_chapter = pytest.mark.parametrize("name", CHAPTERS)


@like_a_chapter
def test_a_folder_with_a_notebook_named_like_a_chapter_is_one_submission(folder, name):
    write(folder, {name: BOOK, "notes.ipynb": BOOK, "data/.ipynb_checkpoints/old.ipynb": BOOK})
    assert found(folder) == {"handed_in": folder}


@like_a_chapter
@pytest.mark.parametrize("other", ["bob/work.ipynb", "bob/deep/01_second.ipynb", "bob.zip", "bob/work.zip"])
def test_a_folder_that_may_be_a_learners_or_a_class_is_refused(folder, name, other):
    """Else one loose file would make a whole class one submission."""
    write(folder, {name: BOOK, other: BOOK})
    with pytest.raises(
        InputError, match=r"give .*/\* if each is a submission; if they are of one learner, move bob"
    ):
        find_submissions([folder], STEMS)
    assert len(found(*folder.iterdir())) == 2
    assert find_submissions([folder], STEMS, whole=True) == [("handed_in", folder)]


def test_names_of_learners_behind_that_of_the_chapter(folder):
    """As some learning platforms call the files that they hand out."""
    write(folder, {"00_first-ada.ipynb": BOOK, "00_first-bob.ipynb": BOOK, "cy/00_first.ipynb": BOOK})
    assert list(found(folder)) == ["00_first-ada", "00_first-bob", "cy"]


def test_a_folder_with_one_notebook_is_one_submission(folder):
    write(folder, {"work.IPYNB": BOOK, "notes.txt": b""})
    assert found(folder) == {"handed_in": folder}


def test_a_folder_with_notebooks_of_many_learners_is_a_folder_of_submissions(folder):
    write(folder, {"alice.ipynb": BOOK, "bob/01_second.ipynb": BOOK, "00_first_dora.ipynb": BOOK})
    zipped(folder / "carol.zip", {"work.ipynb": BOOK})
    files = ("alice.ipynb", "bob", "carol.zip", "00_first_dora.ipynb")
    assert found(folder) == {file.split(".")[0]: folder / file for file in files}


def test_a_folder_among_others_is_one_submission(folder):
    write(folder, {"alice.ipynb": BOOK, "bob/a.ipynb": BOOK, "bob/b.ipynb": BOOK})
    assert list(found(folder / "alice.ipynb", folder / "bob")) == ["alice", "bob"]


@pytest.mark.parametrize("name", ["work.ipynb.txt", "work.ipynb.json"])
def test_a_browser_may_have_added_a_suffix(folder, name):
    write(folder, {name: BOOK, "other.txt": b""})
    assert found(folder) == {"handed_in": folder}
    assert found(folder / name) == {"work": folder / name}


def test_what_systems_leave_behind_is_ignored(folder):
    write(folder, {
        ".DS_Store": b"", "__MACOSX/x/y.ipynb": BOOK, ".ipynb_checkpoints/a.ipynb": BOOK, ".kvcourse/a.json": b"",
        ".hidden.ipynb": BOOK, "alice/x.ipynb": BOOK,
    })  # fmt: skip
    assert found(folder) == {"alice": folder / "alice"}


def test_equal_names_get_the_name_of_their_folder(folder):
    files = ["ann/one/work.ipynb", "ann/two/work.ipynb", "bob/one/work.ipynb", "cy/last.ipynb"]
    write(folder, dict.fromkeys(files, BOOK))
    assert found(*(folder / file for file in files)) == {
        "ann-one-work": folder / files[0],
        "two-work": folder / files[1],
        "bob-one-work": folder / files[2],
        "last": folder / files[3],
    }


def test_a_zip_and_a_notebook_of_one_name_keep_their_suffixes(folder):
    write(folder, {"ada/x.ipynb": BOOK, "ada.ipynb": BOOK, "bob.ipynb": BOOK})
    assert set(found(folder)) == {"ada", "ada.ipynb", "bob"}


def test_names_that_differ_in_case_are_equal(folder):
    write(folder, {"a/Work.ipynb": BOOK, "b/work.ipynb": BOOK})
    assert set(found(folder / "a/Work.ipynb", folder / "b/work.ipynb")) == {"a-Work", "b-work"}


def test_a_path_given_twice_is_one_submission(folder):
    write(folder, {"alice/x.ipynb": BOOK})
    assert list(found(folder / "alice", folder, folder / "alice")) == ["alice"]


def test_a_path_given_in_two_spellings_is_one_submission(folder, monkeypatch):
    write(folder, {"cls/ada.ipynb": BOOK, "cls/bob/x.ipynb": BOOK})
    (folder / "link").symlink_to(folder / "cls")
    monkeypatch.chdir(folder)
    ada = Path("cls/ada.ipynb")
    for other in (
        folder / ada,
        Path("cls/../cls/ada.ipynb"),
        Path("cls/bob/../ada.ipynb"),
        Path("link/ada.ipynb"),
    ):
        assert found(ada, other) == {"ada": ada}
        assert found(other, ada) == {"ada": other}
    assert found(Path("cls/bob"), folder / "cls/bob") == {"bob": Path("cls/bob")}


def test_two_of_one_folder_in_two_spellings_keep_their_suffixes(folder, monkeypatch):
    write(folder, {"ada.ipynb": BOOK, "ada.zip": b""})
    monkeypatch.chdir(folder)
    assert set(found(Path("ada.ipynb"), folder / "ada.zip")) == {"ada.ipynb", "ada.zip"}


def test_names_are_printable_and_short(folder):
    names = ["a\nb\x1b[31m", "x" * 200, "x" * 199 + "y"]
    write(folder, {f"{name}/work.ipynb": BOOK for name in names})
    assert all(name.isprintable() and len(name) <= 100 for name in found(folder))
    assert len(found(folder)) == 3


def test_a_folder_without_anything_among_others_is_a_submission(folder):
    write(folder, {"ann/x.ipynb": BOOK, "bob/x.py": b""})
    assert list(found(folder / "ann", folder / "bob")) == ["ann", "bob"]
    assert only_note(folder / "bob") == "bob holds no notebook; hand in the .ipynb files"


def test_nothing_found(folder):
    write(folder, {"x.txt": b""})
    for paths in ([folder], []):
        with pytest.raises(InputError, match="no submission found"):
            find_submissions(paths, STEMS)


def test_a_path_that_is_missing(folder):
    write(folder, {"alice.ipynb": BOOK})
    with pytest.raises(InputError, match=r"bob\.ipynb: no such file or folder"):
        find_submissions([folder / "alice.ipynb", folder / "bob.ipynb"], STEMS)


def test_a_folder_that_cannot_be_read(folder, monkeypatch):
    write(folder, {"alice/x.ipynb": BOOK})

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(InputError, match=r"handed_in cannot be read \(Permission denied\)"):
        find_submissions([folder], STEMS)


def test_a_link_is_followed_where_it_is_given_and_nowhere_else(folder):
    write(folder, {"class/alice/x.ipynb": BOOK, "elsewhere/x.ipynb": BOOK})
    (folder / "class/bob").symlink_to(folder / "class/alice")
    (folder / "link").symlink_to(folder / "elsewhere")
    (folder / "gone").symlink_to(folder / "nowhere")
    assert found(folder / "link") == {"elsewhere": (folder / "elsewhere").resolve()}
    assert found(folder / "class") == {name: folder / "class" / name for name in ("alice", "bob")}
    assert "bob is a symbolic link: not read" in only_note(folder / "class/bob")
    with pytest.raises(InputError, match="gone: no such file"):
        find_submissions([folder / "gone"], STEMS)


def test_a_folder_named_like_a_notebook_is_a_folder(folder):
    write(folder, {"alice.ipynb/work.ipynb": BOOK, "bob.ipynb/work.ipynb": chapter(SECOND)})
    assert found(folder) == {name: folder / name for name in ("alice.ipynb", "bob.ipynb")}
