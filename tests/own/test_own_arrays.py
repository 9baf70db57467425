"""Arrays of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix
from sklearn.datasets import load_digits

from ipll import IncrementalClassifier
from ipll.errors import DataError
from ipll.own import from_arrays

Refused = Callable[..., str]
X = np.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    ("y", "classes", "names", "sets"),
    [
        (["b", "a", "b"], None, ("b", "a"), ["b", "a", "b"]),
        (np.array([7, 3, 7]), None, ("7", "3"), ["7", "3", "7"]),
        (np.array([1.0, 0.0, 1.0]), None, ("1", "0"), ["1", "0", "1"]),
        ([["b", "a"], ("a",), {"d", "c"}], None, ("b", "a", "c", "d"), ["ba", "a", "cd"]),
        ([["b", "a"], "a", np.array(["c"])], None, ("b", "a", "c"), ["ba", "a", "c"]),
        (np.array([["a"], ["a", "b"], ["b"]], object), None, ("a", "b"), ["a", "ab", "b"]),
        (["a", "b", "b"], ["b", "c", "a"], ("b", "c", "a"), ["a", "b", "b"]),
        (np.array([[1, 1], [0, 1], [1, 0]], bool), ["x", "y"], ("x", "y"), ["xy", "y", "x"]),
        ([[True, True], [False, True], [True, False]], [10, 2], ("10", "2"), [["10", "2"], ["2"], ["10"]]),
        (np.array([[1, 1], [0, 1], [1, 0]]), ["x", "y"], ("x", "y"), ["xy", "y", "x"]),
        (np.array([[1.0, 1], [0, 1], [1, 0]]), ["x", "y"], ("x", "y"), ["xy", "y", "x"]),
        (csr_matrix([[1, 1], [0, 1], [1, 0]]), ["x", "y"], ("x", "y"), ["xy", "y", "x"]),
        (csr_array([[True, True], [False, True], [True, False]]), ["x", "y"], ("x", "y"), ["xy", "y", "x"]),
        ([[1, 1], [0, 1], [1, 0]], ["x", "y"], ("x", "y"), ["xy", "y", "x"]),
        ([[1, 0], [0, 1], [1]], None, ("1", "0"), ["10", "01", "1"]),  # candidates: none is there twice
    ],
    ids=range(15),
)
def test_kinds_of_y(y: Any, classes: Any, names: tuple[str, ...], sets: list[Any]) -> None:
    samples = from_arrays(X, y, classes)
    assert samples.names == names
    found = [{names[k] for k in np.flatnonzero(row)} for row in samples.candidates]
    assert found == [set(one) for one in sets]
    assert samples.features is not None
    assert samples.features.dtype == np.float32
    np.testing.assert_array_equal(samples.features, X)
    assert samples.ids == ["0", "1", "2"]


def test_a_matrix_names_its_classes_itself() -> None:
    matrix = np.array([[1, 1], [0, 1], [1, 0]], bool)
    for y in (matrix, matrix.astype(float), matrix.tolist(), csr_matrix(matrix)):
        samples = from_arrays(X, y)
        assert samples.names == ("0", "1")
        assert samples.candidates.tolist() == matrix.tolist()

    class Frame:  # as pandas and polars have it
        columns, shape = ["robin", "crow"], (3, 2)

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return matrix

    assert from_arrays(X, Frame()).names == ("robin", "crow")
    learner = IncrementalClassifier(epochs=1, random_state=0).fit(X, Frame())
    assert learner.classes_.tolist() == ["crow", "robin"]
    assert IncrementalClassifier(epochs=1, random_state=0).fit(X, matrix).classes_.tolist() == [0, 1]


def test_images_and_their_axes() -> None:
    digits = (load_digits().images[:5] * 15).astype(np.uint8)
    colour = np.repeat(digits[..., None], 3, 3)
    for array, channels in (
        (digits, 1),
        (digits[..., None], 1),
        (digits[:, None], 1),
        (colour, 3),
        (colour.transpose(0, 3, 1, 2), 3),
    ):
        samples = from_arrays(array, list("abcde"))
        assert samples.images is not None
        assert samples.images.channels == channels
        loaded = samples.images.load(8)
        assert loaded.shape == (5, channels, 8, 8)
        np.testing.assert_array_equal(loaded[:, 0], digits)
        np.testing.assert_array_equal(samples.images.load(4)[:, 0], from_arrays(digits).images.load(4)[:, 0])  # type: ignore[union-attr]
    both = from_arrays(np.zeros((2, 3, 9, 1), np.uint8)).images
    assert both is not None
    assert both.channels == 1
    assert both.side == 3


def test_without_y_and_with_ids() -> None:
    samples = from_arrays(X, ids=[5, "x", 7])
    assert samples.ids == ["5", "x", "7"]
    assert samples.candidates.shape == (3, 0)


def test_one_class_and_look_alikes(refused: Refused) -> None:
    assert "one class only, 'a'" in refused(from_arrays, X, ["a"] * 3)
    assert "one class only, 'b'" in refused(from_arrays, X, ["b"] * 3, ["a", "b"])
    assert from_arrays(X, ["a"] * 3, allow_one_class=True).names == ("a",)
    assert "'a', 'A '" in from_arrays(X, ["a", "A ", "b"]).warnings[0]


def test_labels_that_are_lists_with_bars(refused: Refused) -> None:
    """They are refused as such; names that hold a bar stay names, which a warning tells."""
    for y in (
        ["s|v", "v", "v"],
        ["s|v", "v|w", "w|s"],
        np.array(["s | v", "s", "v"]),
        np.array(["s|v", "v", "s"], object),
    ):
        assert "[one.split('|') for one in y]" in refused(from_arrays, X, y)
    assert "[one.split('|')" in refused(from_arrays, X, ["s|v", "v", "s"], ["s", "v"])
    for y, classes in ((["x|other", "y|other", "z"], None), (["s|v", "v", "s"], ["s", "v", "s|v"])):
        samples = from_arrays(X, y, classes)
        assert set(samples.names) == set(y)
        assert any("labels contain '|'" in warning for warning in samples.warnings) == (classes is None)
    one_each = from_arrays(X, [["s|v"], ["v"], ["s"]])
    assert (one_each.names, one_each.warnings) == (("s|v", "v", "s"), [])


def test_minus_one_is_a_class_like_any_other() -> None:
    for y in ([0, 1, -1], np.array([0.0, 1.0, -1.0]), [[0, 1], [0], [-1]]):
        samples = from_arrays(X, y)
        assert "-1" in samples.names
        assert [w for w in samples.warnings if "-1 is taken for a class like any other" in w and "candidates" in w]
    for y in ([1, -1, 1], [-2, -1, 0], ["a", "b", "-1"]):
        assert from_arrays(X, y).warnings == []


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (["1", "1.0", "2"], "the class names '1', '1.0' are the same number; they are taken for different classes"),
        (["7.0", "7", "007"], "'7.0', '7', '007' are the same number"),
        (["é", "e\u0301", "f"], "differ only in how accents are coded"),
        (["É", "e\u0301", "f"], "differ only in case or spaces"),
        (["1 ", "1", "2"], "differ only in case or spaces"),
        (["1", "1.5", "x1"], ""),
    ],
)
def test_classes_that_may_be_the_same(y: list[str], said: str) -> None:
    warnings = from_arrays(X, y).warnings
    assert len(warnings) == bool(said)
    assert said in "".join(warnings)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((X, ["a", "b"]), "y has 2 entries, but X has 3 samples"),
        ((X, ["a", "b", "c"], None, [1, 2]), "ids has 2 entries"),
        ((X, ["a", "b", "c"], None, [1, 2, 1]), "sample 2: id '1' is that of sample 0 too"),
        ((X, [["a"], [], ["b"]]), "sample 1: no candidates"),
        ((X, np.array([[1, 1], [0, 0], [1, 0]], bool), ["x", "y"]), "sample 1: no candidates"),
        ((X, np.ones((3, 2), bool), ["a"]), "classes names 1"),
        (
            (X, np.full((3, 2), 2), ["a", "b"]),
            "A matrix of candidates is [n, classes], of booleans or of 0 and 1",
        ),
        ((X, np.ones((2, 3), bool)), "y has the shape (2, 3), but X has 3 samples. Give its transpose, y.T"),
        ((csr_matrix(X), ["a", "b", "c"]), "X is sparse, which cannot be learnt from as it is. Give X.toarray()"),
        ((X, [[0, 0], [0, 1], [1, 0]]), "y has 2 columns, but classes names none"),
        ((X, ["a", "b", "z"], ["a", "b"]), "sample 2: candidate 'z' is not in classes"),
        ((X, ["a", "b", "c"], ["a", "a"]), "must be different names"),
        ((X, ["a", None, "b"]), "None is no class name"),
        ((X, [0.5, 1.0, 2.0]), "sample 0: 0.5 is no class name"),
        ((np.array([[np.nan, np.nan], [1, 2], [np.inf, 1]]), ["a", "b", "c"]), "2 faults"),
        ((X[:0], []), "no samples"),
        ((X[0], ["a", "b"]), "shape (2,)"),
        (([[1, 2], [3]], ["a", "b"]), "the same features"),
        (([["x", "y"]], ["a"]), "Features are numbers"),
        ((np.zeros((2, 4, 4)), ["a", "b"]), "Images are uint8"),
        ((np.zeros((2, 4, 4, 2), np.uint8), ["a", "b"]), "1 or 3 channels"),
    ],
    ids=range(21),
)
def test_faults(refused: Refused, arguments: tuple[Any, ...], said: str) -> None:
    assert said in refused(from_arrays, *arguments)


def test_rows_of_booleans_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="rows of 1 to 2 booleans"):
        from_arrays(np.zeros((2, 3)), [[True], [True, False]], classes=["a", "b"])
