"""Raw votes: candidate sets, and who is to be believed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipll.cli.own_output import annotator_lines
from ipll.errors import ConfigError
from ipll.own import read_votes
from ipll.own.reading.votes import FEW, KNOWN, ROUNDS, SUREST, reliability

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


@pytest.fixture
def equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every vote counts one."""
    monkeypatch.setattr(
        "ipll.own.reading.votes.reliability", lambda sample, annotator, label: np.ones(annotator.max() + 1)
    )


@pytest.mark.usefixtures("equal")
def test_votes_become_candidates(write: Write) -> None:
    samples = read_votes(write("votes.csv", VOTES), samples=write("samples.csv", SAMPLES))
    assert samples.ids == ["s2", "s1"]
    assert samples.names == ("robin", "sparrow", "crow")
    assert samples.candidates.tolist() == [[False, True, True], [True, True, False]]
    assert samples.votes is not None
    assert samples.votes.dtype == np.float32
    assert samples.votes.tolist() == [[0, 1, 2], [2, 1, 0]]
    assert samples.labels.tolist() == [2, 0]


@pytest.mark.usefixtures("equal")
def test_min_votes(write: Write, refused: Refused) -> None:
    votes, table = write("votes.csv", VOTES), write("samples.csv", SAMPLES)
    samples = read_votes(votes, samples=table, min_votes=2)
    assert samples.names == ("robin", "crow")
    assert samples.votes is not None
    assert samples.votes.tolist() == [[0, 2], [2, 0]]
    message = refused(read_votes, votes, samples=table, min_votes=3)
    assert "row 2: sample 's2' has no label with 3 votes" in message
    assert "--min-votes" in message
    with pytest.raises(ConfigError, match="min_votes must be at least 1"):
        read_votes(votes, samples=table, min_votes=0)


@pytest.mark.usefixtures("equal")
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
    assert samples.votes is not None
    assert samples.votes.tolist() == [[1, 1]]


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


@pytest.mark.usefixtures("equal")
def test_a_bar_in_a_vote_means_a_vote_for_each(write: Write) -> None:
    votes = VOTES.replace("s2,ann,crow\n", "s2,ann, crow | sparrow|\n").replace("s2,ann,sparrow\n", "")
    table = write("samples.csv", SAMPLES)
    plain, barred = (read_votes(write("votes.csv", text), samples=table) for text in (VOTES, votes))
    assert barred.names == plain.names
    assert barred.votes is not None
    assert barred.votes.tolist() == plain.votes.tolist()  # type: ignore[union-attr]
    assert [w for w in barred.warnings if "1 vote with '|', which is one for each of the names between" in w]
    assert plain.warnings == []
    rows = [
        {"sample": "s1", "annotator": "ann", "label": ["a|b"]},
        {"sample": "s2", "annotator": "ann", "label": ["c"]},
    ]
    assert read_votes(write("votes.parquet", rows), samples=table).names == ("a|b", "c")


def test_annotators_who_may_be_one_person_are_named(write: Write) -> None:
    votes = VOTES.replace("s1,ben", "s1, Ben ").replace("s1,cem", "s1, cem ")
    found = read_votes(write("votes.csv", votes), samples=write("samples.csv", SAMPLES))
    assert found.warnings == [
        "the annotators 'Ben', 'ben' differ only in case or spaces; they are taken for different people."
    ]


@pytest.mark.usefixtures("equal")
def test_what_does_not_match_is_left_out_where_it_may_be(write: Write, refused: Refused) -> None:
    votes = write("votes.csv", VOTES + "s3,ann,gull\ns3,ben,gull\n")
    table = write("samples.csv", SAMPLES + "s4,1,\ns5,1,\n")
    assert "--skip-bad" in refused(read_votes, votes, samples=table)
    samples = read_votes(votes, samples=table, skip_bad=True)
    assert samples.ids == ["s2", "s1"]
    assert samples.names == ("robin", "sparrow", "crow")
    assert samples.votes is not None
    assert samples.votes.tolist() == [[0, 1, 2], [2, 1, 0]]
    told = "\n".join(samples.warnings)
    assert f"left out 2 votes on samples that are not in {table}, such as 's3'" in told
    assert "left out 2 samples without votes, or with too few, such as 's4'" in told
    few = read_votes(
        write("votes.csv", VOTES.replace("s2,ben,crow\n", "")),
        samples=table,
        min_votes=2,
        skip_bad=True,
        allow_one_class=True,
    )
    assert (few.ids, few.names) == (["s1"], ("robin",))
    other = write("others.csv", "id,features.x\nt1,1\n")
    assert "none of its samples, such as 's1'" in refused(read_votes, votes, samples=other, skip_bad=True)


@pytest.mark.usefixtures("equal")
def test_further_columns_are_passed_over_and_named(write: Write) -> None:
    header, *rows = VOTES.splitlines()
    votes = "\n".join([f"{header},time,note", *(f"{row},2024-01-01 10:00,x" for row in rows)])
    samples = read_votes(write("votes.csv", votes), samples=write("samples.csv", SAMPLES))
    assert samples.names == ("robin", "sparrow", "crow")
    assert [w for w in samples.warnings if "ignored: 'time', 'note'" in w]


@pytest.mark.usefixtures("equal")
def test_one_column_for_each_annotator(write: Write, refused: Refused) -> None:
    table = write("samples.csv", SAMPLES)
    samples = read_votes(write("votes.csv", "id,ann,ben,cem\ns1,1,1,007\ns2,007,, 1|007 \n"), samples=table)
    assert samples.ids == ["s2", "s1"]
    assert samples.names == ("1", "007")
    assert samples.votes is not None
    assert samples.votes.tolist() == [[1, 2], [2, 1]]
    assert {one.name for one in samples.annotators} == {"ann", "ben", "cem"}
    assert [w for w in samples.warnings if "a column for each annotator: ann, ben, cem; 5 votes" in w]
    for text, why in (
        ("id,worker,answer\ns1,w1,a\ns2,w2,b\n", "'worker' has no label that another column has"),
        ("id,ann,ben,time\ns1,a,a,10:00\ns2,a,b,10:01\n", "'time' has no label"),
        ("id,ann,ben\ns1,a,a\ns1,a,b\n", "'id' is there several times"),
    ):
        said = refused(read_votes, write("votes.csv", text), samples=table)
        assert why in said
        assert "melt('id', var_name='annotator', value_name='label')" in said


def test_votes_about_samples_that_are_no_images_need_their_table(write: Write, photos: Path, refused: Refused) -> None:
    message = refused(read_votes, write("votes.csv", VOTES))
    assert "its samples are no images, such as 's1'" in message
    assert "ipll fit features.csv --votes votes.csv" in message
    assert "is missing" in refused(read_votes, write("votes.csv", VOTES.replace("s1", "s1.jpg")))
    (photos / "0.png").rename(photos / "0")
    votes = write("votes.csv", "sample,annotator,label\nphotos/0,1,a\nphotos/1,1,b\n")
    assert "1' is missing" in refused(read_votes, votes)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from("abcd")), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_weights_are_those_of_who_voted(write: Write, votes: list[tuple[int, int, str]]) -> None:
    text = "sample,annotator,label\n" + "".join(f"{s},{a},{label}\n" for s, a, label in votes)
    names = sorted({s for s, _, _ in votes})
    table = write("samples.csv", "id,features.x\n" + "".join(f"{s},1\n" for s in names))
    samples = read_votes(write("votes.csv", text), samples=table, allow_one_class=True)
    once = sorted(set(votes))
    known = naive_reliability(once)
    assert samples.votes is not None
    for row, s in enumerate(names):
        expected = [sum(known[a] for one, a, label in once if (one, label) == (s, name)) for name in samples.names]
        np.testing.assert_allclose(samples.votes[row], expected, rtol=1e-5)
    np.testing.assert_array_equal(samples.votes > 0, samples.candidates)


def naive_reliability(votes: list[tuple[int, int, str]]) -> dict[int, float]:
    """One vote after another, as it is defined."""
    given_to: dict[int, dict[str, float]] = {}
    for s, _, label in votes:
        given_to.setdefault(s, {}).setdefault(label, 0.0)
        given_to[s][label] += 1
    true = {s: {label: n / sum(of.values()) for label, n in of.items()} for s, of in given_to.items()}
    common = {label: sum(one == label for _, _, one in votes) / len(votes) for _, _, label in votes}
    known = {a: KNOWN for _, a, _ in votes}
    cast = {a: len({s for s, one, _ in votes if one == a}) for a in known}
    for _ in range(ROUNDS):
        knows = [true[s][label] * known[a] / (known[a] + (1 - known[a]) * common[label]) for s, a, label in votes]
        mean = sum(knows) / sum(cast.values())
        for annotator in known:
            own = sum(k for k, (_, a, _) in zip(knows, votes, strict=True) if a == annotator)
            known[annotator] = min(max((own + FEW * mean) / (cast[annotator] + FEW), 1 - SUREST), SUREST)
        for s, of in true.items():
            odds = {
                c: np.prod(
                    [1 + known[a] / ((1 - known[a]) * common[c]) for one, a, said in votes if (one, said) == (s, c)]
                )
                for c in of
            }
            true[s] = {c: float(odds[c] / sum(odds.values())) for c in odds}
    return _where_it_can_be_told(known, cast, votes)


def _where_it_can_be_told(
    known: dict[int, float], cast: dict[int, int], votes: list[tuple[int, int, str]]
) -> dict[int, float]:
    beside = {
        a: {b for s, b, _ in votes if b != a and any(one == (s, a) for one in ((t, c) for t, c, _ in votes))}
        for a in known
    }
    others = [a for a in known if beside[a]]
    mean = sum(known[a] * cast[a] for a in others) / max(sum(cast[a] for a in others), 1)
    told = {a: known[a] if beside[a] or not others else mean for a in known}
    for a in known:
        if len(beside[a]) == 1 and beside[b := next(iter(beside[a]))] == {a}:
            told[a] = (known[a] * cast[a] + known[b] * cast[b]) / (cast[a] + cast[b])
    return told


def test_who_guesses_is_told_from_who_knows() -> None:
    """Three are mostly right, one always says the same, one says anything; of one there are two votes only."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 300)
    people = [np.where(rng.random(300) < right, truth, rng.integers(0, 5, 300)) for right in (0.9, 0.8, 0.7, 0.0)]
    said = np.stack([*people, np.zeros(300, np.int64)], 1)
    sample, annotator = np.divmod(np.arange(1500), 5)
    sample, annotator = np.append(sample, [0, 1]), np.append(annotator, [5, 5])
    known = reliability(sample, annotator, np.append(said.ravel(), (truth[:2] + 1) % 5))
    np.testing.assert_allclose(known[:3], [0.9, 0.8, 0.7], atol=0.06)
    assert (known[3:5] < 0.1).all()
    assert 0.25 < known[5] < 0.5  # wrong twice: not enough to tell
    order = rng.permutation(len(sample))
    again = reliability(sample[order], annotator[order], np.append(said.ravel(), (truth[:2] + 1) % 5)[order])
    np.testing.assert_allclose(again, known)


def test_how_reliable_people_seem_is_told(write: Write) -> None:
    """Of three, all; of many, the least reliable who voted often."""
    rows = [(s, a, "xyz"[(s + (a == 2) * (s // 3 % 3)) % 3]) for s in range(60) for a in range(3)]  # the third errs
    table = write("samples.csv", "id,features.x\n" + "".join(f"{s},1\n" for s in range(60)))

    def told(votes: list[tuple[int, int, str]]) -> str:
        text = "sample,annotator,label\n" + "".join(f"{s},who{a},{label}\n" for s, a, label in votes)
        samples = read_votes(write("votes.csv", text), samples=table)
        (line,) = annotator_lines(samples.annotators)
        return line

    line = told(rows)
    assert line.startswith("3 annotators seem to know the label in 7")
    assert re.search(
        r"those who know it less often count for less\. All: who2 1?\d %, who[01] 9\d %, who[01] 9\d %\.$", line
    )
    many = told(rows + [(s, 3 + s, "x") for s in range(30)])
    assert many.startswith("33 annotators seem")
    assert re.search(r"The least reliable: who2 \d+ %, who[01] 9\d %, who[01] 9\d %\.$", many)
    assert annotator_lines(()) == []
    never = "sample,annotator,label\n" + "".join(
        f"{s},who{a},{'xyz'[(s + a) % 3]}\n" for s in range(60) for a in range(2)
    )
    lines = annotator_lines(read_votes(write("never.csv", never), samples=table).annotators)
    assert "They hardly agree" in lines[1]
    (alone,) = annotator_lines(read_votes(write("one.csv", VOTES.replace("ben", "ann").replace("cem", "ann")),
                                          samples=write("two.csv", SAMPLES)).annotators)  # fmt: skip
    assert alone == "One annotator, ann: nothing tells how reliable, so no label is called sure."


def test_who_is_alone_is_believed() -> None:
    assert (reliability(np.arange(50), np.zeros(50, np.int64), np.arange(50) % 3) > 0.9).all()


def test_of_two_nobody_can_tell_who_is_right() -> None:
    """Two on some samples, two on others, one alone: each pair counts alike, and the one like all of them."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 200)
    said = np.stack([np.where(rng.random(200) < right, truth, rng.integers(0, 5, 200)) for right in (0.9, 0.6)], 1)
    sample, annotator = np.divmod(np.arange(400), 2)
    annotator = annotator + 2 * (sample >= 100)
    sample, annotator = np.append(sample, np.arange(200, 230)), np.append(annotator, np.full(30, 4))
    known = reliability(sample, annotator, np.append(said.ravel(), np.zeros(30, np.int64)))
    assert known[0] == known[1]
    assert known[2] == known[3]
    assert known[:4].min() <= known[4] <= known[:4].max()


def test_who_gives_two_labels_is_right_if_one_is() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 200)
    both = np.stack([truth, (truth + rng.integers(1, 5, 200)) % 5], 1).ravel()
    others = [np.where(rng.random(200) < 0.7, truth, rng.integers(0, 5, 200)) for _ in range(3)]
    sample = np.concatenate([np.repeat(np.arange(200), 2), *[np.arange(200)] * 3])
    annotator = np.concatenate([np.zeros(400, np.int64), *(np.full(200, a) for a in (1, 2, 3))])
    known = reliability(sample, annotator, np.concatenate([both, *others]))
    assert known[0] > 0.7
    np.testing.assert_allclose(known[1:], 0.7, atol=0.15)
