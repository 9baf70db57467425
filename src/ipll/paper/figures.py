"""Figures: the paper's, drawn from our runs in one style, as PNG, SVG and PDF.

A figure is as wide as a column of a paper. Curve differ in colour (Okabe and Ito's, which colour-blind people can tell
apart), line style and marker. The same runs give the same bytes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipll.engine.files import write_atomically
from ipll.errors import ConfigError
from ipll.paper.catalogue import SEEDS, Bench, benches
from ipll.paper.measured import published_runs
from ipll.paper.numbers import SEEDS_DIFFER, Origin, Runs, command, epochs_a_task, find_runs, no_runs, unlike_seeds
from ipll.results.conditions import on_samples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
NO_DATES: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}
STYLE: Any = {  # matplotlib's rcParams
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that it is there everywhere
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 7.5,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "0.35",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.color": "0.35",
    "ytick.color": "0.35",
    "xtick.labelcolor": "0.1",
    "ytick.labelcolor": "0.1",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.8,
    "errorbar.capsize": 2,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "svg.hashsalt": "ipll",
    "pdf.fonttype": 42,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 300,
}


@dataclass(frozen=True)
class Drawing:
    """A figure, and what is to be said about it: missing runs and damaged files."""

    bench: Bench
    figure: Figure
    notes: tuple[str, ...]


def draw(bench: Bench, out: Path, seeds: Sequence[int] = SEEDS) -> Drawing:
    """Draws a bench's figure from the runs under `out`: what is there. Without any, an error says what makes them."""
    check(bench)
    runs = find_runs(bench, out, seeds)
    if not runs.found:
        raise no_runs(bench, out, seeds, runs.damaged)
    notes = [f"Warning: {message}" for message in runs.damaged]
    if runs.missing:
        cells = "".join(f"\n  {cell}" for cell in runs.missing)
        notes.append(f"Not in the figure, for want of a finished run:{cells}\nMake them: {command(bench, out, seeds)}")
    return _drawn(bench, runs, seeds, notes)


def draw_published(bench: Bench, out: Path) -> Drawing:
    """Draws what we measured of a figure, for one who has no runs under `out`: of one protocol, the paper's if any."""
    check(bench)
    found = published_runs(bench) if bench.figure != "prior" else {}  # counts of classes are not published
    if not found:
        raise no_runs(bench, out, SEEDS, ())
    protocol, *others = found
    seeds = sorted({cell.seed for cell in found[protocol].found})
    notes = [f"These are runs that ipll publishes, under {protocol}; not runs of yours: {command(bench, out, SEEDS)}"]
    notes += [f"Not drawn beside them: what was measured under {other}" for other in others]
    return _drawn(bench, found[protocol], seeds, notes, f"ours under {protocol}")


def check(bench: Bench) -> None:
    """Raises an error unless it is a figure, and can be drawn here."""
    if bench.figure is None:
        names = ", ".join(name for name, other in benches().items() if other.figure)
        raise ConfigError(f"{bench.name} is a table: see it with: ipll table {bench.name}. Figures: {names}.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ConfigError("figures need matplotlib. Install it with: pip install 'ipll[figures]'") from None


def _drawn(bench: Bench, runs: Runs, seeds: Sequence[int], notes: Sequence[str], protocol: str = "") -> Drawing:
    import matplotlib

    from ipll.paper.figure_kinds import KINDS, series_of

    with matplotlib.rc_context(STYLE):
        series = series_of(bench, runs, seeds)
        figure = KINDS[str(bench.figure)](series)
        unlike = unlike_seeds({one.name: one.runs for one in series})
        caption = "\n".join([*textwrap.wrap(protocol, 72), _caption(bench, runs, unlike)])
        figure.supxlabel(caption, fontsize=5.8, color="0.35")
    told = [f"Warning: what is drawn rests on {unlike}. {SEEDS_DIFFER}"] if unlike else []
    return Drawing(bench, figure, (*notes, *told))


def _caption(bench: Bench, runs: Runs, unlike: str) -> str:
    """The setting that all share, what was set, and how the numbers were obtained, in lines that fit below."""
    words = [entry.column.split(", ") for entry in bench.entries]
    setting = ", ".join(word for word in words[0] if all(word in one for one in words))
    seeds: dict[Any, int] = {}
    for cell in runs.found:
        seeds[cell.preset, cell.method, cell.settings] = seeds.get((cell.preset, cell.method, cell.settings), 0) + 1
    few, most = min(seeds.values()), max(seeds.values())
    n = f"n = {few}" if few == most else f"n = {few} to {most}"
    origins = sorted({Origin.of(result) for result in runs.found.values()})
    epochs = list(dict.fromkeys(origin.epochs for origin in origins))
    hardware = ", ".join(dict.fromkeys(origin.hardware for origin in origins))
    scored = on_samples(runs.scored_on)
    lines = [f"{setting}; {'mean ± std, ' if most > 1 else ''}{n}", *([f"with {bench.asked}"] if bench.asked else ())]
    lines += [f"{epochs_a_task(epochs)}; {hardware}"]
    lines += [f"scored{scored}, not on the test set"] if scored else []
    lines += [f"{unlike} (other class orders and streams)"] if unlike else []
    return "\n".join(textwrap.fill(line, 72) for line in lines)


def save(drawing: Drawing, to: Path) -> list[Path]:
    """Writes a .png, .svg or .pdf file; or, into a folder, all three under the figure's name."""
    import matplotlib

    kind = to.suffix[1:].lower()
    if kind and kind not in FORMATS and not to.is_dir():
        raise ConfigError(f"--to {to}: a figure is written as .png, .svg or .pdf, or into a folder.")
    whole = kind in FORMATS and not to.is_dir()
    files = [to] if whole else [to / f"{drawing.bench.name}.{suffix}" for suffix in FORMATS]
    for file in files:
        suffix = file.suffix[1:].lower()
        metadata = NO_DATES[suffix] | {"Title": drawing.bench.title}

        def write(path: Path, suffix: str = suffix, metadata: dict[str, Any] = metadata) -> None:
            with matplotlib.rc_context(STYLE):
                drawing.figure.savefig(path, format=suffix, metadata=metadata)

        write_atomically(file, write)
    return files
