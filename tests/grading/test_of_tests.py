"""The graded tests are tested: a stub gets nothing, right answers get all, and each mistake fails a named test."""

import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch
from graded import Batch
from learner import ROOT, TASKS, write_submission

import kvcourse
from kvcourse.course.manifest import read_manifest

HERE = Path(__file__).parent
CHAPTERS = [import_module(path.stem) for path in sorted(HERE.glob("mutants_*.py"))]
OTHERS = [import_module(path.stem) for path in sorted(HERE.glob("variants_*.py"))]
MUTANTS = {exercise: entries for module in CHAPTERS for exercise, entries in module.MUTANTS.items()}
VARIANTS = {exercise: entries for module in OTHERS for exercise, entries in module.VARIANTS.items()}
SETUP = "\n".join(getattr(module, "SETUP", "") for module in CHAPTERS)
SOLVED = {task.id: task.solved for task in TASKS.values()}


def each(table):
    """A test for each entry of a table: its exercise, its place in the list, the entry."""
    return [
        pytest.param(exercise, index, entry, id=f"{exercise}: {entry.name}")
        for exercise, entries in table.items()
        for index, entry in enumerate(entries)
    ]


def earned(record):
    return {exercise.id: exercise.earned for exercise in record.exercises}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """All answers, graded in one batch: submission `mutants-3` holds the fourth mutant of each exercise."""
    batch = Batch(tmp_path_factory.mktemp("answers") / "batch")
    folder = batch.root / "class"
    write_submission(folder / "untouched", {})
    write_submission(folder / "solved", SOLVED)
    (folder / "course").mkdir()
    for chapter in read_manifest(ROOT).chapters:
        shutil.copy(ROOT / chapter.file, folder / "course")
    for index in range(max(map(len, MUTANTS.values()))):
        some = {exercise: mutants[index] for exercise, mutants in MUTANTS.items() if index < len(mutants)}
        sources = {exercise: TASKS[exercise].changed(mutant.change) for exercise, mutant in some.items()}
        write_submission(folder / f"mutants-{index}", SOLVED | sources)
    for index in range(max(map(len, VARIANTS.values()))):
        some = {exercise: variants[index] for exercise, variants in VARIANTS.items() if index < len(variants)}
        sources = {exercise: TASKS[exercise].answered(variant.body) for exercise, variant in some.items()}
        earlier = {exercise: variant.earlier for exercise, variant in some.items() if variant.earlier}
        write_submission(folder / f"variants-{index}", SOLVED | sources, earlier)
    batch.run()
    return batch.records


# ---- the tables ------------------------------------------------------------------------------------


def test_every_exercise_has_mutants_and_variants():
    assert set(MUTANTS) == set(VARIANTS) == set(TASKS)
    assert {e: len(mutants) for e, mutants in MUTANTS.items() if len(mutants) < 3} == {}
    assert {e: len(variants) for e, variants in VARIANTS.items() if len(variants) < 2} == {}


def outcome(source, expression):
    """What an expression gives after a cell was run, as plain data that tells types apart."""

    def plain(value):
        if isinstance(value, torch.Tensor):
            return str(value.dtype), value.tolist()
        return [plain(part) for part in value] if isinstance(value, list | tuple) else (type(value), value)

    names = {"torch": torch}
    exec(source, names)
    exec(SETUP, names)
    try:
        return plain(eval(expression, names))
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(("exercise", "index", "mutant"), each(MUTANTS))
def test_a_mutant_is_wrong(exercise, index, mutant):
    """No mutant does the same as the solution: there are arguments for which it is wrong."""
    task = TASKS[exercise]
    right = outcome(task.solved, mutant.wrong_for)
    assert not isinstance(right, type)
    assert outcome(task.changed(mutant.change), mutant.wrong_for) != right


# ---- the test cell in the notebook -----------------------------------------------------------------


def passes_in_the_notebook(task, source, earlier=""):
    """Whether the public test of the notebook, run below the learner's cell, finds nothing to complain about."""
    names = {"torch": torch, "kv": kvcourse}
    exec(f"{earlier}\n{source}", names)
    try:
        exec(task.public_test, names)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("exercise", TASKS)
def test_the_public_test_tells_right_from_wrong(exercise):
    task = TASKS[exercise]
    assert passes_in_the_notebook(task, task.solved)
    assert not passes_in_the_notebook(task, task.stub)
    for variant in VARIANTS[exercise]:
        assert passes_in_the_notebook(task, task.answered(variant.body), variant.earlier), variant.name
    caught = [m for m in MUTANTS[exercise] if not passes_in_the_notebook(task, task.changed(m.change))]
    assert len(caught) >= 3


# ---- the graded tests ------------------------------------------------------------------------------


def test_a_stub_gets_nothing(records):
    assert earned(records["untouched"]) == dict.fromkeys(TASKS, 0)


@pytest.mark.parametrize("name", ["solved", "course"])
def test_the_solution_gets_all_points(records, name):
    assert earned(records[name]) == {task.id: task.points for task in TASKS.values()}


@pytest.mark.parametrize(("exercise", "index", "mutant"), each(MUTANTS))
def test_a_mutant_fails_a_named_test(records, exercise, index, mutant):
    (score,) = (e for e in records[f"mutants-{index}"].exercises if e.id == exercise)
    outcomes = {o.test.rpartition("::")[2]: o for o in score.outcomes}
    assert mutant.fails in outcomes
    failed = outcomes[mutant.fails]
    assert (failed.outcome, failed.earned) == ("failed", 0), failed
    assert failed.points > 0
    assert score.earned < score.points


def test_every_graded_test_is_failed_by_a_mutant(records):
    """A graded test that no mistake is known to fail may be one that nothing can fail."""
    graded = {(e.id, o.test.rpartition("::")[2]) for e in records["solved"].exercises for o in e.outcomes}
    failed = {(exercise, mutant.fails) for exercise, mutants in MUTANTS.items() for mutant in mutants}
    assert graded - failed == set()


@pytest.mark.parametrize(("exercise", "index", "variant"), each(VARIANTS))
def test_a_variant_gets_all_points(records, exercise, index, variant):
    (score,) = (e for e in records[f"variants-{index}"].exercises if e.id == exercise)
    assert [o for o in score.outcomes if o.outcome != "passed"] == []
    assert score.earned == TASKS[exercise].points


def test_a_mistake_costs_its_own_exercise_only(records):
    for index in range(max(map(len, MUTANTS.values()))):
        scores = earned(records[f"mutants-{index}"])
        untouched = [exercise for exercise, mutants in MUTANTS.items() if index >= len(mutants)]
        assert {e: scores[e] for e in untouched} == {e: TASKS[e].points for e in untouched}
