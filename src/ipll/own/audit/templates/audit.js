"use strict";
(() => {
  const PAGE = 50;
  const CHIPS = 14; // candidates shown of a sample; the rest is counted
  const data = JSON.parse(document.getElementById("data").textContent);
  globalThis.audit = data; // the next script reads it too
  const total = data.id.length;
  const form = document.getElementById("filters");
  const table = document.querySelector("#samples table");
  const body = table.tBodies[0];
  const heads = [...table.tHead.querySelectorAll("th[data-key]")];
  const pager = document.getElementById("pager");
  const number = document.getElementById("page");
  const count = (n) => n.toLocaleString("en");
  const plain = (text) => text.toLowerCase();
  const order = new Intl.Collator("en", { numeric: true });

  // Text is compared once: each gets its place in the alphabet, and rows are sorted by numbers.
  const ranks = (texts) => {
    const places = new Int32Array(texts.length);
    const sorted = texts.map((_, i) => i).sort((a, b) => order.compare(texts[a], texts[b]));
    sorted.forEach((i, place) => { places[i] = place; });
    return places;
  };
  const once = (make) => {
    let made;
    return () => (made ??= make());
  };
  const nameRanks = once(() => ranks(data.names));
  const named = (column) => () => {
    const places = nameRanks();
    return data[column].map((name) => (name < 0 ? data.names.length : places[name]));
  };
  const keys = {
    id: once(() => ranks(data.id)),
    label: once(named("label")),
    confidence: () => data.confidence,
    runner: once(named("runner")),
    candidates: once(() => data.set.map((set) => data.sets[set].length)),
    judged: once(() => [...data.old].map((letter) => -Number(letter))),
    update: () => data.update,
    changed: once(() => data.changed_update.map((update, i) => update * 1e6 + data.changed_epoch[i])),
    memory: once(() => [...data.memory].map((letter) => -Number(letter))),
    given: once(named("given")),
    decided: once(() => data.id.map((_, i) => (data.decided[i] ? 0 : 1))),
  };

  const lowerIds = once(() => data.id.map(plain));
  const found = (text) => {
    // Names and sets are few: they are looked through once, and a row only asks for the answer.
    const names = data.names.map((name) => plain(name).includes(text));
    const sets = data.sets.map((set) => set.some((name) => names[name]));
    const sources = data.sources.map((source) => plain(source).includes(text));
    const ids = lowerIds();
    return (i) => ids[i].includes(text) || sets[data.set[i]] || names[data.label[i]] || names[data.given[i]]
      || names[data.runner[i]] || sources[data.source[i]];
  };
  const tests = () => {
    const wanted = new FormData(form);
    const [low, high] = (wanted.get("confidence") || "0 10001").split(" ").map(Number);
    const label = wanted.get("label");
    const update = wanted.get("update");
    const text = plain(wanted.get("search").trim());
    return [
      label && ((i) => data.label[i] === Number(label)),
      update && ((i) => data.update[i] === Number(update)),
      wanted.get("confidence") && ((i) => data.confidence[i] >= low && data.confidence[i] < high),
      wanted.get("late") && ((i) => data.late[i] === "1"),
      wanted.get("differs") && ((i) => data.given[i] >= 0 && data.given[i] !== data.label[i]),
      wanted.get("memory") && ((i) => data.memory[i] === "1"),
      text && found(text),
    ].filter(Boolean);
  };

  let sorted = { key: "", down: false }; // no key: most doubtful first, as the rows lie in the data
  let rows = [];
  let page = 0;

  const choose = () => {
    const wanted = tests();
    rows = [];
    for (let i = 0; i < total; i += 1) if (wanted.every((test) => test(i))) rows.push(i);
    if (sorted.key) {
      const values = keys[sorted.key]();
      const sign = sorted.down ? -1 : 1;
      rows.sort((a, b) => sign * (values[a] - values[b]) || a - b);
    }
    page = 0;
    for (const head of heads) {
      if (head.dataset.key === sorted.key) head.ariaSort = sorted.down ? "descending" : "ascending";
      else head.removeAttribute("aria-sort");
    }
    show();
  };

  const element = (tag, text = "", classes = "") => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (classes) made.className = classes;
    return made;
  };
  const cell = (name, text, classes = "") => {
    const made = element("td", text, text ? classes : `${classes} empty`.trim());
    made.dataset.name = name;
    made.setAttribute("role", "cell");
    return made;
  };
  const chips = (i) => {
    const list = element("ul", "", "chips");
    const set = data.sets[data.set[i]];
    const settled = data.label[i];
    const shown = [...set].sort((a, b) => (b === settled) - (a === settled)).slice(0, CHIPS).sort((a, b) => a - b);
    for (const name of shown) {
      const chip = element("li", "", name === settled ? "settled" : "");
      if (name === settled) {
        const mark = element("span", "▸ ");
        mark.ariaHidden = "true";
        chip.append(mark);
      }
      chip.append(data.names[name]);
      if (name === settled) chip.append(element("span", " (settled)", "hidden"));
      list.append(chip);
    }
    if (set.length > CHIPS) list.append(element("li", `and ${count(set.length - CHIPS)} more`, "more"));
    return list;
  };
  const row = (i) => {
    const made = element("tr", "", data.confidence[i] < data.doubtful ? "doubtful" : "");
    made.setAttribute("role", "row");
    if (data.pictures) {
      const frame = element("td", "", data.pictures[i] ? "picture" : "picture empty");
      frame.setAttribute("role", "cell");
      if (data.pictures[i]) {
        const image = element("img");
        image.src = `data:${data.pictures[i]}`;
        image.alt = `Training sample ${data.id[i]}`;
        frame.append(image);
      }
      made.append(frame);
    }
    const head = element("th", data.id[i]);
    head.scope = "row";
    head.setAttribute("role", "rowheader");
    if (data.sources[data.source[i]]) head.append(element("small", `${data.sources[data.source[i]]}, row ${data.row[i]}`));
    const candidates = cell("candidates", "–");
    candidates.replaceChildren(chips(i));
    const changed = data.changed_update[i] ? `batch ${data.changed_update[i]}, epoch ${data.changed_epoch[i]}` : "–";
    const last = cell("last changed", changed);
    if (data.late[i] === "1") last.append(element("small", "late"));
    const given = cell("given label", data.given[i] < 0 ? "" : data.names[data.given[i]]);
    if (data.given[i] >= 0) given.append(element("small", data.given[i] === data.label[i] ? "✓ agrees" : "✗ differs"));
    const cells = {
      label: cell("settled on", data.names[data.label[i]]),
      confidence: cell("how sure", `${(data.confidence[i] / 100).toFixed(1)} %`, "number"),
      runner: cell("runner-up", data.runner[i] < 0 ? "" : data.names[data.runner[i]]),
      candidates,
      judged: cell("judged", data.old[i] === "1" ? "old" : "new"),
      update: cell("came in batch", String(data.update[i])),
      changed: last,
      memory: cell("in the memory", data.memory[i] === "1" ? "kept" : ""),
      given,
      decided: cell("decided", data.decided[i]?.[0] ?? ""),
    };
    if (data.decided[i]) cells.decided.append(element("small", data.decided[i][1]));
    made.append(head, ...heads.slice(1).map((one) => cells[one.dataset.key]));
    return made;
  };
  const show = () => {
    const pages = Math.max(Math.ceil(rows.length / PAGE), 1);
    page = Math.min(Math.max(page, 0), pages - 1);
    const from = page * PAGE;
    const shown = rows.slice(from, from + PAGE);
    body.replaceChildren(...shown.map(row));
    const all = rows.length === total ? "" : ` that match, of ${count(total)} in all`;
    document.getElementById("shown").textContent = rows.length
      ? `${count(from + 1)} to ${count(from + shown.length)} of ${count(rows.length)} samples${all}`
      : `No sample matches, of ${count(total)}`;
    document.getElementById("pages").textContent = `of ${count(pages)}`;
    number.value = String(page + 1);
    number.max = String(pages);
    pager.hidden = pages === 1;
    for (const button of pager.querySelectorAll("button")) {
      const end = button.dataset.go.startsWith("-") ? 0 : pages - 1;
      button.ariaDisabled = String(page === end); // not disabled: it would lose the focus
    }
  };
  const go = (to) => {
    page = to;
    show();
    if (table.getBoundingClientRect().top < 0) table.scrollIntoView();
  };

  for (const head of heads) {
    head.querySelector("button").addEventListener("click", () => {
      const { key } = head.dataset;
      sorted = { key, down: sorted.key === key && !sorted.down };
      choose();
    });
  }
  for (const button of pager.querySelectorAll("button")) {
    button.addEventListener("click", () => go(page + Number(button.dataset.go)));
  }
  number.addEventListener("change", () => go(Math.trunc(Number(number.value) || 1) - 1));
  form.addEventListener("input", choose);
  form.addEventListener("reset", () => setTimeout(() => {
    sorted = { key: "", down: false };
    choose();
  }));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  table.hidden = false;
  choose();
})();
