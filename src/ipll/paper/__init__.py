"""The paper: its numbers, its tables and figures as lists of runs, and ours beside its."""

from pathlib import Path

OUT = Path("runs/bench")  # where the runs of tables and figures go, and are looked for
