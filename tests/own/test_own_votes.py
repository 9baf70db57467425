"""Raw votes: candidate sets and shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipll.errors import ConfigError
from ipll.own import read_votes

Write = Callable[..., Path]
Refused = Callable[..., str]

VOTES = """sample,annotator,label
s1,ann,robin
s1,ben,robin
s1,cem,sparrow
s1,ann,robin
s2,ann,crow
s2,ann,sparrow
s2,ben,crow
"""
SAMPLES = "id,features.x,label\ns2,2,crow\ns1,1,robin\n"


def test_votes_become_candidates_and_shares(write: Write) -> None:
    samples = read_votes(write("votes.csv", VOTES), samples=write("samples.csv", SAMPLES))
    assert samples.ids == ["s2", "s1"]
    assert samples.names == ("robin", "sparrow", "crow")
    assert samples.candidates.tolist() == [[False, True, True], [True, True, False]]
    assert samples.shares is not None
    assert samples.shares.dtype == np.float32
    np.testing.assert_allclose(samples.shares, [[0, 1 / 3, 2 / 3], [2 / 3, 1 / 3, 0]], rtol=1e-6)
    assert samples.labels.tolist() == [2, 0]


def test_min_votes(write: Write, refused: Refused) -> None:
    votes, table = write("votes.csv", VOTES), write("samples.csv", SAMPLES)
    samples = read_votes(votes, samples=table, min_votes=2)
    assert samples.names == ("robin", "crow")
    assert samples.shares is not None
    assert samples.shares.tolist() == [[0, 1], [1, 0]]
    message = refused(read_votes, votes, samples=table, min_votes=3)
    assert "row 2: sample 's2' has no label with 3 votes" in message
    assert "--min-votes" in message
    with pytest.raises(ConfigError, match="min_votes must be at least 1"):
        read_votes(votes, samples=table, min_votes=0)


def test_votes_about_images(write: Write, photos: Path, refused: Refused) -> None:
    votes = write("votes.csv", "sample,annotator,label\nphotos/1.png,1,a\nphotos/0.png,1,b\nphotos/1.png,2,b\n")
    samples = read_votes(votes)
    assert samples.ids == ["photos/1.png", "photos/0.png"]
    assert samples.rows.tolist() == [2, 3]
    assert samples.images is not None
    assert samples.images.load(8).shape == (2, 1, 8, 8)
    (photos / "0.png").unlink()
    assert "votes.csv, row 3: image" in refused(read_votes, votes)
    samples = read_votes(votes, skip_bad=True)
    assert samples.ids == ["photos/1.png"]
    assert samples.skipped[0][0] == 3
    assert samples.shares is not None
    assert samples.shares.tolist() == [[0.5, 0.5]]


def test_votes_for_a_skipped_image_of_a_table(write: Write, photos: Path) -> None:
    table = write("samples.csv", "id,image\nx,photos/0.png\ny,photos/gone.png\n")
    votes = write("votes.csv", "sample,annotator,label\nx,1,a\nx,2,b\ny,1,c\n")
    samples = read_votes(votes, samples=table, skip_bad=True, image_size=8)
    assert (samples.ids, samples.names) == (["x"], ("a", "b"))


@pytest.mark.parametrize(
    ("votes", "table", "said"),
    [
        (VOTES + "s3,ann,crow\n", SAMPLES, ["votes.csv, row 9: sample 's3' is not in", "samples.csv"]),
        (VOTES, SAMPLES + "s4,1,\n", ["samples.csv, row 4: sample 's4' has no votes"]),
        (VOTES + "s1,,crow\ns1,ann,\n", SAMPLES, ["2 faults", "row 9: no annotator", "row 10: no label"]),
        (VOTES.replace("annotator", "anotator"), SAMPLES, ["unknown column 'anotator'", "'annotator'"]),
        ("sample,label\ns1,a\n", SAMPLES, ["no column 'annotator'"]),
        (VOTES, "features.x\n1\n2\n", ["no column 'id'"]),
        (VOTES, "id,features.x,candidates\ns1,1,a\ns2,1,b\n", ["'candidates' beside votes"]),
        (VOTES, SAMPLES + "s1,3,\n", ["samples.csv, row 4: id 's1' is that of row 3 too"]),
        ("sample,annotator,label\ns1,1,a\ns2,1,a\n", SAMPLES, ["one class only"]),
    ],
)
def test_faults(write: Write, refused: Refused, votes: str, table: str, said: list[str]) -> None:
    message = refused(read_votes, write("votes.csv", votes), samples=write("samples.csv", table))
    for part in said:
        assert part in message


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from("abcd")), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_shares_against_counting(write: Write, votes: list[tuple[int, int, str]]) -> None:
    text = "sample,annotator,label\n" + "".join(f"{s},{a},{label}\n" for s, a, label in votes)
    names = sorted({s for s, _, _ in votes})
    table = write("samples.csv", "id,features.x\n" + "".join(f"{s},1\n" for s in names))
    samples = read_votes(write("votes.csv", text), samples=table, allow_one_class=True)
    assert samples.shares is not None
    np.testing.assert_allclose(samples.shares.sum(1), 1, rtol=1e-6)
    for row, s in enumerate(names):
        given_to = [label for one, _, label in set(votes) if one == s]
        expected = [given_to.count(name) / len(given_to) for name in samples.names]
        np.testing.assert_allclose(samples.shares[row], expected, rtol=1e-6)
    np.testing.assert_array_equal(samples.shares > 0, samples.candidates)
