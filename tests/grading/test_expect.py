"""What tests of exercises say: one line that tells what differs, and whose mistake it was."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcourse.course.grading import expect
from kvcourse.course.grading.outcomes import judge
from kvcourse.course.grading.program import Unusable
from kvcourse.course.grading.references import REFERENCE
from kvcourse.course.grading.sandbox import Remote, Stopped, StudentError

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=6,
)


def said(function, *arguments, **keywords):
    """The message of the Unequal that a call raises."""
    with pytest.raises(expect.Unequal) as caught:
        function(*arguments, **keywords)
    return str(caught.value)


def remote(kind="FusedCache"):
    return Remote(lambda *_, **__: pytest.fail("a test must not ask a learner's object"), 1, kind)


@given(plain)
def test_a_value_is_equal_to_itself(value):
    expect.equal(value, value)


@given(st.integers(), st.integers(1))
def test_another_number_is_not_equal(number, step):
    assert said(expect.equal, number + step, number, what="length").startswith("length: expected ")


def test_tolerance_is_what_was_allowed():
    expect.close(1.0, 1.5, atol=0.5)
    expect.close(3.0, 2.0, rtol=0.5)
    assert "expected 1.5, got 1.0" in said(expect.close, 1.0, 1.5, atol=0.25)
    assert said(expect.equal, 1.0, 1.5) == "expected 1.5, got 1.0"


def test_an_object_of_the_learner_is_named_and_never_asked():
    assert said(expect.equal, remote(), 3) == "expected the int 3, got an object of type FusedCache"
    assert said(expect.parts, remote("generator"), 2) == "expected 2 values, got an object of type generator"


@pytest.mark.parametrize("pair", [(1, 2), [1, 2], torch.tensor([1, 2])], ids=["tuple", "list", "tensor"])
def test_parts_are_what_unpacking_gives(pair):
    first, second = pair
    assert expect.parts(pair, 2) == (first, second)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "expected 2 values, got None"),
        ((1, 2, 3), "expected 2 values, got 3"),
        (7, "expected 2 values, got the int 7"),
        (torch.tensor(1), "expected 2 values, got an int64 tensor of shape ()"),
        ({"k": 1, "v": 2}, "expected 2 values, got a dict of 2 entries"),
    ],
)
def test_parts_that_are_none(value, told):
    assert said(expect.parts, value, 2, what="append") == f"append: {told}"


def double(x):
    return 2 * x


def test_agree_shows_the_call():
    expect.agree(lambda x: x + x, double, 21)
    assert said(expect.agree, lambda x: x, double, 21) == "double(21): expected 42, got 21"
    expect.agree(lambda x: 2 * x + 0.5, double, 21.0, atol=0.5)


def test_agree_shows_small_integer_tensors_by_their_numbers():
    assert said(expect.agree, lambda x: x, double, torch.tensor([[7, 9]])).startswith(
        "double(tensor([[7, 9]])): "
    )
    assert said(expect.agree, lambda x: x, double, torch.ones(2, 3)).startswith(
        "double(float32 tensor of shape (2, 3)): "
    )
    assert said(expect.agree, lambda x: x, double, torch.ones(99, 3, dtype=int)).startswith(
        "double(int64 tensor of shape (99, 3)): "
    )
    assert said(expect.agree, lambda x: x, double, torch.tensor([7], dtype=torch.int32)).startswith(
        "double(tensor([7], dtype=int32)): "
    )


def test_nothing_returned_is_told_as_such():
    assert said(expect.equal, None, 3) == "expected the int 3, got None; is a `return` missing?"


def test_agree_gives_both_the_same_arguments():
    def takes_the_last(numbers):
        return numbers.pop()

    expect.agree(takes_the_last, takes_the_last, [1, 2, 3])


def test_an_error_of_the_reference_is_no_result():
    with pytest.raises(expect.NoExpectation, match="ZeroDivisionError in the reference"):
        expect.agree(double, lambda x: x / 0, 1)


# ---- outcomes --------------------------------------------------------------------------------------


def raised(source, name="<test>"):
    """The exception that a source raises, with its traceback."""
    try:
        exec(compile(source, name, "exec"), {"pytest": pytest})
    except BaseException as error:
        return error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Unusable("no notebook of chapter 0"), ("not run", "no notebook of chapter 0")),
        (expect.Unequal("expected 1, got 2"), ("failed", "expected 1, got 2")),
        (StudentError("KeyError", "'a'\nb", "cell 3"), ("failed", "KeyError: 'a' b (cell 3)")),
        (Stopped("used more than 10 s"), ("stopped", "the program used more than 10 s")),
        (Stopped("ended without an answer"), ("stopped", "the program ended without an answer")),
        (expect.NoExpectation("none"), ("broken test", "none")),
    ],
)
@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
@pytest.mark.parametrize("called", [True, False])
def test_known_errors_mean_the_same_everywhere(error, outcome, when, called):
    assert judge(error, when, called) == outcome


def test_an_error_before_the_first_call_is_the_tests_own():
    error = raised("assert [] == [1], 'why'")
    assert judge(error, "call", called=False) == ("broken test", "AssertionError in the test: why")
    assert judge(error, "call", called=True) == ("failed", "why")
    assert judge(error, "setup", called=True)[0] == judge(error, "teardown", called=True)[0] == "broken test"


def test_an_error_with_a_result_is_the_students():
    assert judge(raised("len(3)"), "call", called=True) == (
        "failed",
        "could not use your result: TypeError: object of type 'int' has no len()",
    )
    assert judge(raised("pytest.fail('too slow')"), "call", called=True) == ("failed", "too slow")


def test_an_error_inside_the_reference_is_never_the_students():
    error = raised("1 / 0", REFERENCE)
    told = ("broken test", "ZeroDivisionError in the reference: division by zero")
    assert judge(error, "call", called=True) == told


def test_a_skipped_test_is_broken():
    assert judge(raised("pytest.skip('later')"), "call", called=True)[0] == "broken test"


@given(st.text(max_size=2000))
def test_messages_are_one_printable_line(text):
    for error in (StudentError("Error", text, text), ValueError(text), AssertionError(text)):
        _, message = judge(error, "call", called=True)
        assert message
        assert len(message) <= 500
        assert "\n" not in message
        assert "\x1b" not in message
