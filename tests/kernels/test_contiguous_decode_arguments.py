"""What the operation refuses, and that the message says what to do."""

import math

import pytest
import torch

from kvcourse.kernels import contiguous_decode


def arguments(**changes):
    good = {
        "q": torch.zeros(2, 4, 8),
        "k": torch.zeros(2, 2, 5, 8),
        "v": torch.zeros(2, 2, 5, 6),
        "lengths": torch.tensor([5, 0]),
    }
    return good | changes


BAD = {
    "q with a token axis": ({"q": torch.zeros(2, 4, 1, 8)}, "pass q as"),
    "another batch": ({"q": torch.zeros(3, 4, 8)}, "one batch"),
    "another head_dim": ({"k": torch.zeros(2, 2, 5, 7)}, "one head_dim"),
    "another capacity": ({"v": torch.zeros(2, 2, 4, 6)}, "capacity"),
    "heads that do not divide": ({"q": torch.zeros(2, 3, 8)}, "whole number"),
    "no kv heads": ({"k": torch.zeros(2, 0, 5, 8), "v": torch.zeros(2, 0, 5, 6)}, "whole number"),
    "no query heads": ({"q": torch.zeros(2, 0, 8)}, "whole number"),
    "no numbers in a key": ({"q": torch.zeros(2, 4, 0), "k": torch.zeros(2, 2, 5, 0)}, "at least 1"),
    "no numbers in a value": ({"v": torch.zeros(2, 2, 5, 0)}, "at least 1"),
    "a scale that is text": ({"scale": "x"}, "a finite number"),
    "a scale that is not a number": ({"scale": math.nan}, "a finite number"),
    "a scale without end": ({"scale": math.inf}, "a finite number"),
    "a scale that is a truth value": ({"scale": True}, "a finite number"),
    "two types": ({"k": torch.zeros(2, 2, 5, 8, dtype=torch.float16)}, "one floating type"),
    "values of another type": ({"v": torch.zeros(2, 2, 5, 6, dtype=torch.float16)}, "one floating type"),
    "integers": (
        {name: torch.zeros(2, 2, 5, 8, dtype=torch.int32)[:, :, :n] for name, n in (("k", 5), ("v", 5))},
        "type",
    ),
    "two devices": ({"v": torch.zeros(2, 2, 5, 6, device="meta")}, "one device"),
    "lengths of another batch": ({"lengths": torch.tensor([1])}, "shape (batch,)"),
    "float lengths": ({"lengths": torch.tensor([1.0, 2.0])}, "int32 or int64"),
    "a length above the capacity": ({"lengths": torch.tensor([1, 6])}, "0 to the capacity, 5"),
    "a negative length": ({"lengths": torch.tensor([-1, 2])}, "0 to the capacity, 5"),
    "starts of another batch": ({"starts": torch.tensor([0])}, "starts"),
    "lengths elsewhere": ({"lengths": torch.tensor([1, 2], device="meta")}, "move it"),
    "an unknown backend": ({"backend": "cuda"}, "'reference', 'torch'"),
    "the CPU kernel on another type": (
        {
            name: torch.zeros(2, *shape, dtype=torch.float64)
            for name, shape in {"q": (4, 8), "k": (2, 5, 8), "v": (2, 5, 6)}.items()
        }
        | {"backend": "cpu"},
        "backend='torch'",
    ),
}


@pytest.mark.parametrize("backend", [None, "cpu"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input(name, backend):
    changes, advice = BAD[name]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        contiguous_decode(**arguments(**{"backend": backend} | changes))
    assert advice.replace("'", "") in str(caught.value).replace("'", "")
    assert "\n" not in str(caught.value)


def test_good_input_is_not_refused():
    assert contiguous_decode(**arguments()).shape == (2, 4, 6)
