"use strict";
(() => {
  const PAGE = 24;

  // Legends: a button shows or hides its group's lines in every chart.
  const toggles = [...document.querySelectorAll("[data-toggle]")];
  for (const button of toggles) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      const number = button.dataset.toggle;
      for (const twin of toggles) if (twin.dataset.toggle === number) twin.setAttribute("aria-pressed", String(on));
      for (const line of document.querySelectorAll(`g[data-group="${number}"]`)) line.classList.toggle("off", !on);
    });
  }

  // The gallery: filters without a reload, one screenful at a time.
  const form = document.getElementById("filters");
  if (!form) return;
  const cards = [...document.querySelectorAll(".card")];
  const more = document.getElementById("more");
  let limit = PAGE;

  const fits = (card, wanted) => {
    const own = card.dataset;
    const confidence = Number(own.confidence);
    return (!wanted.get("run") || own.run === wanted.get("run"))
      && (!wanted.get("task") || own.task === wanted.get("task"))
      && (!wanted.get("label") || own.truth === wanted.get("label") || own.settled === wanted.get("label"))
      && (!wanted.get("wrong") || card.classList.contains("wrong"))
      && (!wanted.get("old") || own.born === "old")
      && (!wanted.get("confidence") || within(confidence, wanted.get("confidence")));
  };
  const within = (value, range) => {
    const [low, high] = range.split(" ").map(Number);
    return value >= low && value < high;
  };
  const show = () => {
    const wanted = new FormData(form);
    const fitting = cards.filter((card) => fits(card, wanted));
    const shown = new Set(fitting.slice(0, limit));
    for (const card of cards) card.hidden = !shown.has(card);
    const all = fitting.length === cards.length ? "" : ` that match, of ${cards.length} in all`;
    document.getElementById("shown").textContent = fitting.length
      ? `${shown.size} of ${fitting.length} samples shown${all}`
      : `No sample matches, of ${cards.length}`;
    more.hidden = fitting.length <= limit;
    return fitting;
  };
  const restart = () => {
    limit = PAGE;
    show();
  };
  form.addEventListener("input", restart);
  form.addEventListener("reset", () => setTimeout(restart));
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => {
    const next = limit;
    limit += PAGE;
    const card = show()[next];
    card.tabIndex = -1;
    card.focus();
  });
  form.hidden = false;
  show();
})();
