"""How the cells of a table are set: as text in columns, between Markdown's bars, escaped for LaTeX."""

from __future__ import annotations

from collections.abc import Sequence


class Column:
    """A column of the text: 'ours paper diff' of each row, set to equal widths."""

    def __init__(self, name: str, rows: Sequence[tuple[str, ...]]) -> None:
        heads = ("ours", "paper", "diff ")[: len(rows[0])]
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        self.name = name
        self.width = max(len(name), sum(widths) + 2 * len(widths) - 2)
        self.head, *self.lines = (
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).ljust(self.width)
            for row in (heads, *rows)
        )


def bars(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plain_markdown(text: str) -> str:
    return text.replace("*", "\\*").replace("|", "\\|").replace("<", "&lt;")


TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "†": r"$^{\dagger}$", "*": "$^{*}$",
}  # fmt: skip


def tex(text: str) -> str:
    """Escaped; a number's minus sign is set as one."""
    escaped = "".join(TEX.get(letter, letter) for letter in text.strip())
    return f"${escaped[0]}${escaped[1:]}" if escaped[:1] in ("+", "-") and len(escaped) > 1 else escaped


def precise(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
