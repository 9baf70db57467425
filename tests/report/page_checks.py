"""What every page has to hold in a browser: keyboard, structure, contrast."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from browser import Browser

CONTRAST = """(() => {
  const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
  };
  const poor = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !e.checkVisibility() || e.closest('script, svg .middle.value, title, desc')) continue;
    const style = getComputedStyle(e);
    const pair = [parse(e.closest('svg') ? style.fill : style.color), ground(e)].map(light).sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) poor.push(`${e.tagName} ${ratio.toFixed(2)} ${e.textContent.slice(0, 30)}`);
  }
  return [getComputedStyle(document.body).backgroundColor, poor.slice(0, 5)];
})()"""


def focus(browser: Browser, selector: str) -> None:
    """Moves the focus with the Tab key alone."""
    for _ in range(200):
        browser.press("Tab")
        if browser.evaluate(f"document.activeElement.matches({json.dumps(selector)})"):
            return
    pytest.fail(f"{selector} cannot be reached by keyboard")


def check_structure(browser: Browser) -> None:
    """Landmarks, headings in order, labels on what can be chosen, scopes on the heads of tables."""
    for landmark in ("header", "nav", "main", "footer", "h1"):
        assert browser.evaluate(f"document.querySelectorAll('{landmark}').length") == 1
    levels = browser.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))")
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert browser.evaluate("[...document.querySelectorAll('select, input')].every((e) => e.labels.length)")
    assert browser.evaluate("[...document.querySelectorAll('th')].every((e) => e.scope)")


def check_contrast(browser: Browser, paper: str) -> None:
    """Text stands out from its ground, and that of the page is this colour."""
    ground, poor = browser.evaluate(CONTRAST)
    assert ground == paper
    assert poor == []


def check_width(browser: Browser) -> None:
    """Nothing sticks out of the screen, with all that can be unfolded."""
    browser.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    outside = """[...document.querySelectorAll('main *, header *, nav *')].filter((e) =>
        e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, .hidden, .skip')).length"""
    assert browser.evaluate(outside) == 0


def check_keyboard(browser: Browser, *, uncovered: bool = False) -> None:
    """The Tab key goes through all that can have the focus, in order; where it is can be seen. Nothing lies over it,
    where it must be `uncovered`."""
    seen: list[int] = []
    for _ in range(300):
        browser.press("Tab")
        place, ring, on_top = browser.evaluate(
            "(() => { const e = document.activeElement; const s = getComputedStyle(e); const box = e"
            ".getBoundingClientRect(); const top = document.elementFromPoint(box.left + box.width / 2, box.top +"
            " box.height / 2); return [[...document.querySelectorAll('*')].indexOf(e), e === document.body ||"
            " s.outlineStyle !== 'none', e.contains(top)]; })()"
        )
        assert ring
        if seen and place <= seen[-1]:
            break  # past the end, back at the start
        assert on_top or not uncovered
        seen.append(place)
    focusable = "a, button, select, input, summary, [tabindex='0']"
    visible = f'[...document.querySelectorAll("{focusable}")].filter((e) => e.checkVisibility()).length'
    assert len(seen) == browser.evaluate(visible)
