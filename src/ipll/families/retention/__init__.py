"""Retention: what keeps old knowledge while a task is learnt."""

from __future__ import annotations

from ipll.component import FAMILIES, Component

MEMBERS = ("distillation", "wa", "bic", "er_ace", "ancl", "boost")

FAMILIES["retention"].register("none")(Component)  # what is not replayed is forgotten
