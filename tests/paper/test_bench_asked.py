"""A folder knows which campaigns it holds: tables and figures need not be told again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipll.engine.sealed import write_sealed
from ipll.errors import DataError
from ipll.paper.campaigns.asked import FOLDER, Asked, kept, to_show
from ipll.paper.catalogue import ACCURACY

Main = Callable[..., Any]
FAST = ("train.epochs=2",)


@pytest.fixture
def fill(root: Path, tmp_path: Path) -> Callable[..., None]:
    """As if `ipll bench` had run: its record, and a result for the first cells."""
    real = json.loads((root / "results" / "digits" / "pgdr" / "q0.2-10b-seed0.json").read_text())

    def put(asked: Asked, accuracy: float = 80.0, cells: int = 1, record: bool = True) -> None:
        if record:
            asked.keep(tmp_path)
        for cell in asked.bench().cells(asked.numbers)[:cells]:
            folder = cell.folder(tmp_path)
            folder.mkdir(parents=True)
            own = {"preset": cell.preset, "method": cell.method, "seed": cell.seed, ACCURACY: accuracy}
            (folder / "result.json").write_text(json.dumps(real | own))

    return put


def test_bench_then_table_then_figure(main: Main, command: Callable[..., list[str]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = command("contrastive", "--seeds", 1, "--jobs", 1, "--only", "pgdr")
    status, shown, err = main(*words)
    assert status == 0, err
    status, text, err = main("table", "contrastive", "--out", out)
    assert (status, text, err) == (0, shown, "")
    status, text, err = main("figure", "contrastive", "--out", out)
    assert status == 0, err
    assert (out / "figures" / "contrastive.svg").exists()
    records = list((out / FOLDER).iterdir())
    before = [(file.stat().st_ino, file.stat().st_mtime_ns) for file in records]
    main(*words)
    assert [(file.stat().st_ino, file.stat().st_mtime_ns) for file in records] == before
    assert list((out / FOLDER).iterdir()) == records


def test_a_dry_run_leaves_no_record(main: Main, command: Callable[..., list[str]], tmp_path: Path) -> None:
    assert main(*command("prior", "--dry-run")).status == 0
    assert not (tmp_path / "out").exists()


def test_several_campaigns_are_listed_with_the_commands_that_show_them(
    main: Main, fill: Callable[..., None], tmp_path: Path
) -> None:
    fill(Asked("tab3", "digits", FAST), 81.0)
    fill(Asked("tab3", "digits", ("train.epochs=3", "stream.q=0.3"), "0,7"), 82.0, cells=3)
    fill(Asked("tab3"), 83.0)
    fill(Asked("beta"))
    status, out, err = main("table", "tab3", "--out", tmp_path)
    assert (status, out) == (2, "")
    assert f"{tmp_path} holds several campaigns of tab3. Show one of them:" in err
    listed = [line.strip() for line in err.splitlines()[1:]]
    assert len(listed) == 3
    assert any("(3 of 24 runs done)" in line for line in listed)
    for accuracy in ("81.00", "82.00", "83.00"):
        shown = [main(*line.partition("  (")[0].split()[1:]) for line in listed]
        assert [accuracy in one.out for one in shown].count(True) == 1
        assert all(one.status == 0 for one in shown)
    for preset in ("digits", "cifar100"):
        fill(Asked("neighbours", preset))
    status, _, err = main("figure", "neighbours", "--out", tmp_path)
    assert status == 2
    assert f"  ipll figure neighbours --preset digits --seeds 3 --out {tmp_path}  (1 of 15 runs done)" in err
    assert "tab3 is a table" in main("figure", "tab3", "--out", tmp_path).err


def test_campaigns_that_differ_in_seeds_and_rows_are_one(fill: Callable[..., None], tmp_path: Path, main: Main) -> None:
    fill(Asked("tab3", "digits", FAST, "1", ("pgdr",)), 80.0)
    fill(Asked("tab3", "digits", FAST, "1,", ("pgdr/mp",)), 90.0)
    (one,) = kept(tmp_path, "tab3")
    assert (one.seeds, sorted(one.only)) == ("2", ["pgdr", "pgdr/mp"])
    text = main("table", "tab3", "--out", tmp_path).out
    assert "80.00" in text
    assert "90.00" in text
    assert "pgdr/pp" not in text
    Asked("tab3", "digits", FAST, "4,").keep(tmp_path)
    assert kept(tmp_path, "tab3") == [Asked("tab3", "digits", FAST, "0,1,4,")]
    assert "pgdr/pp" in main("table", "tab3", "--out", tmp_path).out
    assert "pgdr/pp" not in main("table", "tab3", "--only", "pgdr", "--out", tmp_path).out


def test_further_methods_are_kept(fill: Callable[..., None], tmp_path: Path, main: Main) -> None:
    fill(Asked("tab3", "digits", FAST, "1"), 81.0)
    fill(Asked("tab3", "digits", FAST, "1", ("proden", "10-blurry"), ("proden",)), 82.0)
    fill(Asked("tab3", "digits", FAST, "1", ("pgdr/best",), ("pgdr/best",)), 83.0)
    (one,) = kept(tmp_path, "tab3")
    assert sorted(one.methods) == ["pgdr/best", "proden"]
    for options in ((), ("--preset", "digits"), ("--preset", "digits", "--set", *FAST, "--seeds", "1")):
        text = main("table", "tab3", *options, "--out", tmp_path).out
        assert all(number in text for number in ("81.00", "82.00", "83.00"))
    assert "81.00" not in main("table", "tab3", "--only", "proden", "--out", tmp_path).out
    text = main("table", "tab3", "--method", "pico", "--out", tmp_path).out
    assert "\npico " in text
    assert "82.00" in text
    fill(Asked("tab3", "digits", ("train.epochs=3",)))
    assert "--method proden" in main("table", "tab3", "--out", tmp_path).err  # in the commands that show them


def test_a_further_method_stands_beside_rows_that_were_chosen(
    fill: Callable[..., None], tmp_path: Path, main: Main
) -> None:
    fill(Asked("tab3", "digits", FAST, "1", ("pgdr",)), 81.0)
    text = main("table", "tab3", "--method", "proden", "--out", tmp_path).out
    assert "\nproden " in text
    assert "pgdr/mp" not in text


def test_a_record_without_further_methods_is_as_of_earlier_versions(tmp_path: Path) -> None:
    Asked("tab3", "digits").keep(tmp_path)
    (file,) = (tmp_path / FOLDER).iterdir()
    assert "methods" not in file.read_text()


def test_options_say_which_campaign_is_meant(fill: Callable[..., None], tmp_path: Path, main: Main) -> None:
    fill(Asked("tab3", "digits", FAST), 81.0)
    fill(Asked("tab3", "digits"), 82.0, record=False)
    assert "81.00" in main("table", "tab3", "--out", tmp_path).out
    assert "82.00" in main("table", "tab3", "--preset", "digits", "--out", tmp_path).out
    assert "81.00" in main("table", "tab3", "--set", *FAST, "--out", tmp_path).out
    assert "81.00" in main("table", "tab3", "--seeds", "2", "--out", tmp_path).out
    fill(Asked("tab3", "digits", FAST, "5"), 83.0, record=True, cells=0)
    named = Asked("tab3", "digits", FAST)
    assert to_show(named, tmp_path, "table") == replace(named, seeds="5")  # all that were run
    assert to_show(replace(named, seeds="2"), tmp_path, "table") == replace(named, seeds="2")
    for options in (("--seeds", "7,"), ("--set", "train.epochs=3"), ("--preset", "cifar100")):
        status, out, err = main("table", "tab3", *options, "--out", tmp_path)
        assert (status, out) == (2, "")
        assert f"{tmp_path} holds no finished run of tab3 with these options. It holds:" in err
        assert (
            f"  ipll table tab3 --preset digits --set train.epochs=2 --seeds 5 --out {tmp_path}  (1 of 60 runs" in err
        )
    assert "unknown preset 'digitz'" in main("table", "tab3", "--preset", "digitz", "--out", tmp_path).err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table", "tab3", "--preset", "digits", "--set", "stream.blurry=50"), "tab3 itself varies stream.blurry"),
        (("figure", "contrastive", "--set", "stream.q=0.3"), "contrastive itself varies stream.q"),
    ],
)
def test_what_is_varied_cannot_be_asked_for(
    words: tuple[str, ...], message: str, fill: Callable[..., None], tmp_path: Path, main: Main
) -> None:
    fill(Asked("tab3", "digits"), 82.0)
    status, out, err = main(*words, "--out", tmp_path)
    assert (status, out) == (2, "")
    assert message in err


def test_without_runs_a_preset_chooses_among_what_we_published(tmp_path: Path, main: Main) -> None:
    fast = main("table", "tab1", "--preset", "cifar100-fast", "--out", tmp_path).out
    assert "our training, preset cifar100-fast" in fast
    assert "the paper's protocol" not in fast
    papers = main("table", "tab1", "--preset", "cifar100", "--out", tmp_path).out
    assert "the paper's protocol" in papers
    assert "preset cifar100-fast" not in papers
    status, _, err = main("table", "tab1", "--preset", "digits", "--out", tmp_path)
    assert status == 2
    assert f"Make them with: ipll bench tab1 --preset digits --out {tmp_path}" in err


def test_a_campaign_of_some_rows_is_counted_and_shown_as_such(
    fill: Callable[..., None], tmp_path: Path, main: Main
) -> None:
    fill(Asked("tab3", "digits", FAST, "1", ("pgdr",)), 81.0, cells=2)
    fill(Asked("tab3", "digits", ("train.epochs=3",), "1"), 82.0)
    err = main("table", "tab3", "--out", tmp_path).err
    assert f"--set train.epochs=2 --seeds 1 --only pgdr --out {tmp_path}  (2 of 2 runs done)" in err


def test_a_campaign_without_a_finished_run_is_not_shown(fill: Callable[..., None], tmp_path: Path, main: Main) -> None:
    fill(Asked("tab3", "digits", FAST), cells=0)
    status, out, err = main("table", "tab3", "--out", tmp_path)
    assert status == 0
    assert "Ours are the numbers that ipll publishes" in out
    assert f"{tmp_path} holds no finished run of tab3 yet. To go on:" in err
    assert f"  ipll bench tab3 --preset digits --set train.epochs=2 --seeds 3 --out {tmp_path}  (0 of 36 runs" in err


def test_a_folder_of_an_earlier_version(fill: Callable[..., None], tmp_path: Path, main: Main) -> None:
    fill(Asked("tab3", "digits", FAST), 81.0, record=False)
    status, out, err = main("table", "tab3", "--out", tmp_path)
    assert status == 0
    assert "Ours are the numbers that ipll publishes" in out
    assert f"{tmp_path} holds runs on digits, but not which campaigns they are of" in err
    assert "call ipll bench tab3 with them once more" in err
    assert "81.00" in main("table", "tab3", "--preset", "digits", "--set", *FAST, "--out", tmp_path).out
    fill(Asked("tab3"), 83.0, record=False)
    assert "83.00" in main("table", "tab3", "--out", tmp_path).out  # as it was


def test_the_same_bench_once_more_makes_the_record(fill: Callable[..., None], tmp_path: Path, main: Main) -> None:
    fill(Asked("neighbours", "digits", FAST), 81.0, cells=15, record=False)
    words = ("neighbours", "--out", tmp_path)
    assert "81.00" not in main("table", *words).out
    assert main("bench", *words, "--preset", "digits", "--set", *FAST).status == 0
    assert "81.00 ± 0.00" in main("table", *words).out


def test_a_record_behind_a_link_is_neither_written_nor_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / FOLDER).symlink_to(tmp_path / "theirs")
    with pytest.raises(DataError, match="symbolic link"):
        Asked("tab3").keep(tmp_path / "out")
    assert not list((tmp_path / "theirs").iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is cut short or damaged"),
        ("[]", "is not a table of fields"),
        ("{}", "is no record of a campaign of this name"),
        ({"name": "tab1"}, "is no record of a campaign of this name"),
        ({"seeds": 3}, "is no record of a campaign of this name"),
        ({"set": "train.epochs=2"}, "is no record of a campaign of this name"),
        ({"only": [1]}, "is no record of a campaign of this name"),
        ({"methods": "pgdr/best"}, "is no record of a campaign of this name"),
        ({"methods": ["pgdr/bets"]}, "unknown method 'pgdr/bets'. Did you mean 'pgdr/best'?"),
        ({"more": 1}, "is no record of a campaign of this name"),
        ({"preset": "../../etc"}, "unknown preset '../../etc'"),
        ({"set": ["train.epoch=2"]}, "Did you mean 'train.epochs'?"),
        ({"set": ["update.kind=fragile"]}, "Where its campaign is of a plugin, name that: --plugin FILE."),
        ({"set": ["stream.blurry=50"]}, "tab3 itself varies stream.blurry"),
        ({"seeds": "99999999999"}, "--seeds takes how many"),
        ({"only": ["wa"]}, "no cell of tab3 is of that kind"),
        ("seal", "its seal is broken"),
        ("link", "it is a symbolic link"),
    ],
)  # fmt: skip
def test_a_damaged_or_strange_record_is_named(content: Any, message: str, tmp_path: Path, main: Main) -> None:
    asked = Asked("tab3", "digits", FAST)
    asked.keep(tmp_path)
    (file,) = (tmp_path / FOLDER).iterdir()
    values = {"name": "tab3", "preset": "digits", "set": list(FAST), "seeds": "3", "only": []}
    if content == "link":
        (tmp_path / "theirs").write_bytes(file.read_bytes())
        file.unlink()
        file.symlink_to(tmp_path / "theirs")
    elif content == "seal":
        file.write_text(file.read_text().replace("=2", "=3"))
    elif isinstance(content, str):
        file.write_text(content)
    else:
        write_sealed(file, values | content)
    status, out, err = main("table", "tab3", "--out", tmp_path)
    assert (status, out) == (2, "")
    assert f"{file} " in err
    assert message in err
    damaged = "cannot be used here" not in err
    assert ("Remove it, and name its campaign by the options that it was made with (--preset, --set" in err) == damaged
    assert ("The file itself is whole." in err) != damaged
    assert main("table", "beta", "--out", tmp_path).status == 0  # another's record is not in the way
    if content != "link":
        asked.keep(tmp_path)  # the campaign itself makes it good
    if isinstance(content, str) and content != "link":
        assert kept(tmp_path, "tab3") == [Asked("tab3", "digits", FAST, "3")]


def test_many_write_into_one_folder_at_once(tmp_path: Path) -> None:
    asked = [Asked(name, "digits", (f"train.epochs={n}",)) for name in ("tab3", "beta") for n in (1, 2, 3)]
    threads = [threading.Thread(target=one.keep, args=(tmp_path,)) for one in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept(tmp_path, "tab3")) == len(kept(tmp_path, "beta")) == 3
    assert len(list((tmp_path / FOLDER).iterdir())) == 6
