"""Our numbers beside the paper's: checked by hand; how each was obtained; what is said where runs are missing."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ipll
from ipll.paper.catalogue import ACCURACY, Entry, find_bench
from ipll.paper.tables import FORMATS, render

Write = Callable[..., Path]


@pytest.fixture
def write(root: Path, tmp_path: Path) -> Write:
    """Puts a real result, with other numbers, where the bench looks for the entry's run."""
    real = json.loads((root / "results" / "digits" / "pgdr" / "q0.2-10b-seed0.json").read_text())

    def put(entry: Entry, seed: int = 0, **changes: Any) -> Path:
        file = entry.cell(seed).folder(tmp_path) / "result.json"
        file.parent.mkdir(parents=True)
        own = {"preset": entry.preset, "method": entry.method, "seed": seed}
        file.write_text(json.dumps(real | own | changes))
        return file

    return put


def entry_of(bench: str, method: str, **settings: Any) -> Entry:
    wanted = {f"stream.{key}": value for key, value in settings.items()}
    return next(
        e for e in find_bench(bench).entries if e.method == method and wanted.items() <= dict(e.settings).items()
    )


def line(text: str, start: str) -> list[str]:
    return next(row.split() for row in text.splitlines() if row.split()[:1] == [start])


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def environment(**changes: Any) -> dict[str, Any]:
    return {"commit": "0123456789abcdef+", "hardware": "A & B_1 100%", "packages": {"torch": "2.13.0"}} | changes


# Numbers


def test_mean_std_difference_and_mark_against_both_spreads(write: Write, tmp_path: Path) -> None:
    """pico+wa, q 0.1: the paper has 67.31 ± 0.41 (10-blurry) and 66.86 ± 0.52 (30-blurry)."""
    bench = find_bench("tab1").only(["pico+wa"]).only(["cifar100"])
    for seed, (one, other) in enumerate([(65.0, 65.0), (66.0, 66.0), (67.0, 68.0)]):
        write(entry_of("tab1", "pico+wa", blurry=10.0, q=0.1), seed, **{ACCURACY: one})  # 66 ± 1: 1.31 is within 1.41
        write(entry_of("tab1", "pico+wa", blurry=30.0, q=0.1), seed, **{ACCURACY: other})  # 66.33 ± 1.53
        write(entry_of("tab1", "pico+wa", blurry=10.0, q=0.2), seed, **{ACCURACY: one - 4})  # 62 ± 1: 2.12, not 1.38
    text = render(bench, tmp_path, (0, 1, 2))
    for shown in ("66.00 ± 1.00  67.31  -1.31 ", "66.33 ± 1.53  66.86  -0.53 ", "62.00 ± 1.00  64.12  -2.12*"):
        assert shown in text
    assert "* mean ± std of ours and of the paper (its table of spreads) do not meet." in text
    marked = {row["column"]: row["marked"] for row in rows_of(render(bench, tmp_path, (0, 1, 2), "csv"))}
    assert list(marked.values()) == ["no", "no", "yes", "no"]


def test_where_the_paper_has_no_spread_ours_alone_decides(write: Write, tmp_path: Path) -> None:
    """Table 3: pgdr 63.83 and pgdr/mp 57.94 (10-blurry), q 0.2."""
    for seed, value in enumerate((62.0, 64.0)):  # 63 ± 1.41
        write(entry_of("tab3", "pgdr", blurry=10.0), seed, **{ACCURACY: value})
        write(entry_of("tab3", "pgdr/mp", blurry=10.0), seed, **{ACCURACY: value})
    text = render(find_bench("tab3"), tmp_path, (0, 1))
    assert line(text, "pgdr")[1:6] == ["63.00", "±", "1.41", "63.83", "-0.83"]
    assert line(text, "pgdr/mp")[1:6] == ["63.00", "±", "1.41", "57.94", "+5.06†"]
    assert "† the paper's number, whose spread it does not give" in text
    assert "*" not in text


def test_a_single_run_has_no_spread_and_no_mark(write: Write, tmp_path: Path) -> None:
    write(entry_of("tab3", "pgdr", blurry=10.0), **{ACCURACY: 10.0})
    text = render(find_bench("tab3"), tmp_path, (0,))
    assert line(text, "pgdr")[1:4] == ["10.00", "63.83", "-53.83"]
    assert "A single run has no spread: its difference is not judged." in text
    assert "n = 1 (seed 0)" in text
    assert "A dash: no finished run." in text
    assert f"Missing: 11 of its 12 runs. To make them: ipll bench tab3 --seeds 1 --out {tmp_path}" in text
    assert "same seeds" not in text


def test_only_the_asked_seeds_count(write: Write, tmp_path: Path) -> None:
    for seed in range(4):
        write(entry_of("tab3", "pgdr", blurry=10.0), seed, **{ACCURACY: 60.0 + seed})
    assert "61.50 ± 2.12" in render(find_bench("tab3"), tmp_path, (0, 3))


def test_times_spreads_and_separation(write: Write, tmp_path: Path) -> None:
    write(entry_of("running-time", "pgdr"), seconds_per_epoch=0.5)
    text = render(find_bench("running-time"), tmp_path, (0,))
    assert line(text, "pgdr")[1:] == ["0.50", "8.50", "-8.00"]
    assert "A6000" in text

    spread = entry_of("std", "pico", blurry=10.0, q=0.1)
    for seed, value in enumerate((20.0, 21.0, 22.0)):
        write(spread, seed, **{ACCURACY: value})
    assert line(render(find_bench("std"), tmp_path), "pico")[1:4] == ["1.00", "0.24", "+0.76"]
    assert line(render(find_bench("std"), tmp_path, (0,)), "pico")[1:4] == ["-", "0.24", "-"]

    judged = find_bench("separation-accuracy").with_settings({"train.epochs": 7})
    fields = {"accuracy": [None, 90.0, 80.0], "new_recall": [None, 95.0, 97.0], "old_recall": [None, 60.0, None]}
    more = [None, None]  # of five tasks
    write(judged.entries[0], **{f"separation_{name}_per_task": values + more for name, values in fields.items()})
    text = render(judged, tmp_path, (0,))
    found = [row.split()[3:] for row in text.splitlines() if row.startswith("pgdr, ")]
    assert found == [["85.00", "92.32", "-7.32"], ["96.00", "98.90", "-2.90"], ["60.00", "86.49", "-26.49"]]
    assert "Ours with train.epochs=7; the paper with its own settings." in text


# How a number was obtained


def test_one_line_where_all_agree_and_footnotes_where_not(write: Write, tmp_path: Path) -> None:
    same = {"environment": environment(), "epochs": 40}
    for seed in (0, 1):
        write(entry_of("tab3", "pgdr", blurry=10.0), seed, **same)
        write(entry_of("tab3", "pgdr/mp", blurry=10.0), seed, **same)
    how = "40 epochs a task, A & B_1 100%, torch 2.13.0, commit 0123456789+."
    text = render(find_bench("tab3"), tmp_path, (0, 1))
    assert f"Ours: mean ± std over seeds, n = 2 (seeds 0, 1), {how}" in text
    assert "[1]" not in text
    write(entry_of("tab3", "pgdr/pp", blurry=10.0), **same | {"epochs": 200})
    text = render(find_bench("tab3"), tmp_path, (0, 1))
    assert f"[1] n = 2 (seeds 0, 1), {how}" in text
    assert "[2] n = 1 (seed 0), 200 epochs a task" in text
    assert line(text, "pgdr")[4] == "[1]"
    assert line(text, "pgdr/pp")[2] == "[2]"


def test_epochs_of_later_tasks_are_told(write: Write, tmp_path: Path) -> None:
    write(entry_of("tab3", "pgdr", blurry=10.0), epochs=200, later_epochs=30)
    bench = find_bench("tab3").only(["pgdr"])
    assert "n = 1 (seed 0), 200/30 epochs a task" in render(bench, tmp_path, (0,))
    assert rows_of(render(bench, tmp_path, (0,), "csv"))[0]["epochs"] == "200/30"


def test_an_epoch_is_one(write: Write, tmp_path: Path) -> None:
    write(entry_of("tab3", "pgdr", blurry=10.0), epochs=1)
    assert "n = 1 (seed 0), 1 epoch a task, " in render(find_bench("tab3"), tmp_path, (0,))


def test_headings_tell_what_was_learnt(write: Write, tmp_path: Path) -> None:
    bench = find_bench("tab3").on("digits").with_settings({"data.source": "folder"})
    write(bench.entries[0])
    text = render(bench, tmp_path, (0,))
    assert "\nfolder (preset digits), q 0.2\n" in text
    assert "Ours with data.source=folder." in text


# What keeps rows from being compared


def test_missing_runs_and_rows_of_unlike_seeds_are_told(write: Write, tmp_path: Path, main: Any) -> None:
    """Three of four runs: no cell is empty, and yet they are not all of the same seeds."""
    bench = find_bench("tab3").on("digits").only(["pgdr", "pgdr/mp"]).only(["10-blurry"])
    ours, theirs = bench.entries
    for entry, seed in ((ours, 0), (ours, 1), (theirs, 1)):
        write(entry, seed)
    command = "ipll bench tab3 --preset digits --only pgdr --only pgdr/mp --only 10-blurry --seeds 2"
    makes = f"Missing: 1 of its 4 runs. To make them: {command} --out {tmp_path}"
    unlike = "Not all of these numbers rest on the same seeds. Another seed is another class order and another stream"
    for fmt in FORMATS[:3]:
        text = render(bench, tmp_path, (0, 1), fmt)
        assert makes in text.replace("\\_", "_")
        assert unlike in text
    status, out, err = main("table", *command.split()[2:], "--out", tmp_path, "--format", "csv")
    assert (status, makes in err, unlike in err) == (0, True, True)
    assert makes not in out
    write(theirs, 0)
    assert "missing" not in (text := render(bench, tmp_path, (0, 1)))
    assert "same seeds" not in text


# Validation samples


@pytest.mark.parametrize("fmt", FORMATS)
def test_numbers_on_validation_samples_do_not_stand_beside_the_papers(write: Write, tmp_path: Path, fmt: str) -> None:
    bench = find_bench("tab3").with_settings({"data.validation": 0.1})
    for seed, value in enumerate((61.0, 63.0)):
        write(bench.entries[0], seed, scored_on="validation", **{ACCURACY: value})
    text = render(bench, tmp_path, (0, 1), fmt)
    assert "62.0" in text
    assert "validation" in text
    assert not any(f"{entry.paper:.2f}" in text for entry in bench.entries)
    if fmt == "csv":
        row = rows_of(text)[0]
        assert (row["scored_on"], row["paper"], row["paper_std"], row["difference"]) == ("validation", "", "", "")
        assert row["marked"] == "no"
    else:
        assert "average incremental accuracy in %; scored on validation samples" in text.replace("\\%", "%")
        assert "The paper's numbers, which are on the test set, are left out" in text
        assert "Paper: of 3 runs" not in text


def test_where_the_paper_has_no_number_none_is_left_out(write: Write, tmp_path: Path) -> None:
    bench = find_bench("tab3").on("digits").with_settings({"data.validation": 0.1})
    write(bench.entries[0], scored_on="validation")
    assert "left out" not in render(bench, tmp_path, (0,))


def test_validation_and_test_numbers_in_one_table_are_refused(write: Write, tmp_path: Path) -> None:
    bench = find_bench("tab3")
    files = [write(bench.entries[0], seed, **change) for seed, change in enumerate(({}, {"scored_on": "validation"}))]
    with pytest.raises(ipll.RunError, match="not scored alike") as error:
        render(bench, tmp_path, (0, 1))
    assert f"on test samples: {files[0].parent};" in str(error.value)
    assert f"on validation samples: {files[1].parent})" in str(error.value)
    assert "Show each kind by itself" in str(error.value)
    assert "scored on validation samples" not in render(bench, tmp_path, (0,))
    assert "scored on validation samples" in render(bench, tmp_path, (1,))


def test_csv_has_one_line_per_entry_with_all_fields(write: Write, tmp_path: Path) -> None:
    entry = entry_of("tab3", "pgdr", blurry=10.0)
    write(entry, 0, environment=environment(), epochs=40, **{ACCURACY: 60.0})
    write(entry, 1, environment=environment(commit=None), epochs=40, **{ACCURACY: 62.0})
    rows = rows_of(render(find_bench("tab3"), tmp_path, (0, 1), "csv"))
    assert len(rows) == len(find_bench("tab3").entries)
    assert json.loads(rows[0].pop("settings")) == dict(entry.settings)
    assert rows[0] == {
        "row": "pgdr", "column": entry.column, "method": "pgdr", "preset": "cifar100", "metric": ACCURACY,
        "ours": "61.0000", "std": "1.4142", "n": "2", "seeds": "0 1", "paper": "63.8300", "paper_std": "",
        "difference": "-2.8300", "marked": "yes", "epochs": "40", "hardware": "A & B_1 100%", "torch": "2.13.0",
        "commit": "0123456789+ | unknown", "scored_on": "test", "protocol": "",
    }  # fmt: skip
    assert (rows[-1]["ours"], rows[-1]["n"], rows[-1]["marked"]) == ("", "0", "no")


# Formats


def test_markdown_is_a_table_with_cells_in_every_row(write: Write, tmp_path: Path) -> None:
    for seed, value in enumerate((60.0, 61.0)):
        write(entry_of("tab3", "pgdr", blurry=10.0), seed, **{ACCURACY: value})
    text = render(find_bench("tab3"), tmp_path, (0, 1), "markdown")
    table = [row for row in text.splitlines() if row.startswith("|")]
    assert {row.count("|") for row in table} == {4}
    assert table[1] == "| --- | ---: | ---: |"
    assert table[2] == "| `pgdr` | 60.50 ± 0.71 / 63.83 (-3.33†) | - / 64.58 (-) |"


def test_latex_is_a_booktabs_tabular_with_escapes(write: Write, tmp_path: Path) -> None:
    for seed, value in enumerate((60.0, 61.0)):
        write(entry_of("tab1", "pico", blurry=10.0, q=0.1), seed, environment=environment(), **{ACCURACY: value})
    write(entry_of("beta", "pgdr"), environment=environment())
    text = render(find_bench("tab1").only(["pico"]), tmp_path, (0, 1), "latex")
    assert r"pico & 60.50 $\pm$ 0.71 & 28.00 & $+$32.50$^{*}$ & - & 28.90 & - &" in text
    assert r"A \& B\_1 100\%" in text
    tabulars = re.findall(r"\\begin\{tabular\}\{(l(?:rrr)+)\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert len(tabulars) == 2  # a data set each
    for columns, body in tabulars:
        for row in body.split("\n\\midrule\n")[1].split("\n\\bottomrule")[0].splitlines():
            assert row.endswith(r" \\")
            assert len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    assert r"disambiguation.beta\_start 0.2" in render(find_bench("beta"), tmp_path, (0,), "latex")
    unescaped = re.compile(r"(?<!\\)[_#~]|[^\x00-\x7f]")
    assert not any(unescaped.search(row) for row in text.splitlines() if not row.startswith("%"))


@pytest.mark.usefixtures("fewer_presets")
def test_text_fits_a_screen_and_groups_by_data_set(write: Write, tmp_path: Path) -> None:
    for entry in find_bench("tab1").entries:
        if entry.available:
            write(entry, **{ACCURACY: 50.0})
            write(entry, 1, **{ACCURACY: 51.0})
    text = render(find_bench("tab1"), tmp_path, (0, 1))
    table = text.partition("\nOurs:")[0]
    assert max(map(len, table.splitlines())) <= 100
    assert table.count("cifar100, 10 tasks") == 2  # its four settings are too wide for one block
    assert table.count("tiny-imagenet, 10 tasks") == 1
    assert "10-blurry, q 0.1" in table
    assert "tiny-imagenet: this version has no such preset; the paper's numbers only." in text


def test_on_another_data_set_there_is_no_paper(write: Write, tmp_path: Path) -> None:
    bench = find_bench("tab3").on("digits").with_settings({"train.epochs": 2})
    for entry in bench.entries:
        write(entry, epochs=2, **{ACCURACY: 80.0})
    for fmt in FORMATS[:3]:
        text = render(bench, tmp_path, (0,), fmt)
        assert "80.00" in text
        assert not re.search("paper|diff", text.lower().replace("difference is", ""))


# Missing and damaged


def test_no_runs(tmp_path: Path, main: Any) -> None:
    bench = find_bench("tab3").on("digits").with_settings({"train.epochs": 2, "stream.order": "random"})
    command = f"ipll bench tab3 --preset digits --set train.epochs=2 --set stream.order=random --out {tmp_path}"
    with pytest.raises(ipll.RunError, match=re.escape(f"Make them with: {command}")):
        render(bench, tmp_path)
    status, out, err = main("table", "tab3", "--out", tmp_path, "--seeds", "0,5")
    assert (status, out) == (2, "")
    assert err.rstrip().endswith(f"ipll bench tab3 --seeds 0,5, --out {tmp_path}")


@pytest.mark.usefixtures("fewer_presets")
def test_a_table_of_data_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ipll.RunError, match=r"tiny-imagenet, which this version has no preset for\. Use --preset"):
        render(find_bench("memory"), tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-100],
        lambda text: "",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace('"seed": 1', '"seed": 7'),
        lambda text: re.sub(rf'"{ACCURACY}": [\d.]+', f'"{ACCURACY}": NaN', text),
        lambda text: re.sub(r'"accuracy_per_task": \[', '"accuracy_per_task": ["x", ', text),
        lambda text: text.replace('"predicted"', '"foretold"'),
        lambda text: "\udcff" + text,
    ],
    ids=["cut", "empty", "list", "bare", "another run", "NaN", "text", "no prior", "no text"],
)
def test_a_corrupt_result_is_named_and_left_out(
    damage: Callable[[str], str], write: Write, tmp_path: Path, main: Any, snapshot: Any
) -> None:
    entry = entry_of("tab3", "pgdr", blurry=10.0)
    write(entry, 0, **{ACCURACY: 60.0})
    file = write(entry, 1, **{ACCURACY: 70.0})
    file.write_bytes(damage(file.read_text()).encode(errors="surrogateescape"))
    before = snapshot(tmp_path)
    text = render(find_bench("tab3"), tmp_path, (0, 1))
    assert line(text, "pgdr")[1] == "60.00"
    assert len(re.findall(rf"Warning: {re.escape(str(file))}: .+", text)) == 1
    assert "overwrite" not in text  # which bench has not
    assert "Left out" in text
    status, out, err = main("table", "tab3", "--out", tmp_path, "--seeds", "0,1", "--format", "csv")
    assert status == 0
    assert f"Warning: {file}" in err
    assert rows_of(out)[0]["n"] == "1"
    assert snapshot(tmp_path) == before


# The command


def test_the_command_line(write: Write, tmp_path: Path, main: Any) -> None:
    entry = find_bench("tab3").on("digits").with_settings({"train.epochs": 2}).entries[0]
    write(entry, 3, **{ACCURACY: 90.0})
    options = ("--out", tmp_path, "--preset", "digits", "--set", "train.epochs=2", "--seeds", "3,", "--only", "pgdr")
    status, out, err = main("table", "tab3", *options, "--to", tmp_path / "new" / "table.md", "--format", "markdown")
    assert (status, err) == (0, "")
    assert "| `pgdr` | 90.00 |" in (tmp_path / "new" / "table.md").read_text()
    assert str(tmp_path / "new" / "table.md") in out
    assert line(main("table", "tab3", *options).out, "pgdr") == ["pgdr", "90.00", "-"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tab33",), "there is no table or figure 'tab33'. Did you mean 'tab3'?"),
        (("tab3", "--seeds", "0-2"), "--seeds takes how many (3) or which (0,1,2; '2,' for one alone), got '0-2'."),
        (("tab3", "--preset", "digit"), "unknown preset 'digit'. Did you mean 'digits'?"),
        (("tab3", "--only", "wa"), "--only wa: no cell of tab3 is of that kind."),
        (("tab3", "--format", "html"), "--format must be one of text, markdown, latex, csv, got 'html'."),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str, main: Any, tmp_path: Path, write: Write) -> None:
    write(entry_of("tab3", "pgdr"))
    status, out, err = main("table", *arguments, "--out", tmp_path)
    assert (status, out) == (2, "")
    assert message in err
