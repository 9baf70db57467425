(() => {
  const data = globalThis.audit;
  const MATCHES = 8; // classes shown of those that a search finds
  const KEY = `ipll-audit ${data.audit}`;
  const get = (id) => document.getElementById(id);
  const [desk, card, who, order, told] = ["desk", "card", "who", "order", "told"].map(get);
  const count = (n) => n.toLocaleString("en");
  const element = (tag, text = "", classes = "") => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (classes) made.className = classes;
    return made;
  };
  const rows = new Map(); // id -> row; made when a file is loaded or decisions are found
  const rowOf = (id) => {
    if (!rows.size) data.id.forEach((one, i) => rows.set(one, i));
    return rows.get(id);
  };
  const numbers = new Map(data.names.map((name, i) => [name, i]));

  // What was done, in order: { row, name, who, when }; name -1 is none of these, null a skip. Undo takes the last one.
  let done = [];
  let decided = new Map(); // row -> its decision
  let skipped = new Set();
  let doubt = 0; // of what is open, in 1/10,000
  const queues = { teach: data.queue, doubt: [...data.queue].sort((a, b) => a - b) };
  let at = 0; // place in the queue
  let kept = true;

  const index = () => {
    decided = new Map();
    skipped = new Set();
    for (const one of done) {
      if (one.name === null) skipped.add(one.row);
      else decided.set(one.row, one);
    }
    doubt = 0;
    for (const row of data.queue) if (!decided.has(row)) doubt += 10000 - data.confidence[row];
  };
  const store = () => {
    try {
      const plain = done.map(({ row, name, who: by, when }) => [data.id[row], name === null ? null : word(name), by, when]);
      localStorage.setItem(KEY, JSON.stringify(plain));
      localStorage.setItem("ipll-who", who.value);
    } catch {
      if (kept) tell("This browser keeps nothing across reloads here: save your decisions before you leave.");
      kept = false;
    }
  };
  const word = (name) => (name < 0 ? data.none : data.names[name]);
  const restore = () => {
    try {
      who.value = localStorage.getItem("ipll-who") ?? "";
      for (const [id, name, by, when] of JSON.parse(localStorage.getItem(KEY) ?? "[]")) {
        const row = rowOf(id);
        const number = name === null ? null : name === data.none ? -1 : numbers.get(name);
        if (row !== undefined && number !== undefined) done.push({ row, name: number, who: by, when });
      }
    } catch {
      kept = false;
    }
  };
  const tell = (text) => { told.textContent = text; };

  const open = (row) => !decided.has(row) && !skipped.has(row);
  const next = (from) => {
    const queue = queues[order.value];
    for (let i = from; i < queue.length; i += 1) if (open(queue[i])) return i;
    for (let i = 0; i < from; i += 1) if (open(queue[i])) return i;
    return queue.length;
  };
  const current = () => queues[order.value][at];
  const decide = (name) => {
    const row = current();
    if (row === undefined) return;
    const before = decided.get(row);
    if (before) done.splice(done.indexOf(before), 1);
    done.push({ row, name, who: who.value.trim(), when: new Date().toISOString().slice(0, 19) + "Z" });
    finish(at + 1);
  };
  const finish = (from) => {
    tell("");
    index();
    store();
    at = next(from);
    show();
    card.focus({ preventScroll: true });
  };
  const undo = () => {
    const last = done.pop();
    if (!last) return;
    index();
    store();
    at = Math.max(queues[order.value].indexOf(last.row), 0);
    tell(last.name === null ? "" : `Undone: ${data.id[last.row]} was ${word(last.name)}`);
    show();
  };
  const back = () => {
    if (at > 0) at -= 1;
    show();
  };

  const picture = (row, alt) => {
    const image = element("img");
    image.src = `data:${data.pictures[row]}`;
    image.alt = alt;
    return image;
  };
  const key = (text) => element("kbd", text);
  const button = (text, keyText, act, classes = "") => {
    const made = element("button", "", classes);
    made.type = "button";
    if (keyText) made.append(key(keyText), " ");
    made.append(text);
    made.addEventListener("click", act);
    return made;
  };
  const others = () => {
    const box = element("div", "", "other");
    const label = element("label", "Another class ");
    const field = element("input");
    field.type = "search";
    field.id = "another";
    field.autocomplete = "off";
    label.append(field);
    const found = element("div", "", "found");
    const matches = () => {
      const text = field.value.trim().toLowerCase();
      if (!text) return [];
      const all = data.classes.filter((c) => data.names[c].toLowerCase().includes(text));
      const rank = (c) => { // the very name, then what begins with it
        const name = data.names[c].toLowerCase();
        return name === text ? 0 : name.startsWith(text) ? 1 : 2;
      };
      return all.sort((a, b) => rank(a) - rank(b)).slice(0, MATCHES);
    };
    field.addEventListener("input", () => {
      found.replaceChildren(...matches().map((c) => button(data.names[c], "", () => decide(c))));
    });
    field.addEventListener("keydown", (event) => {
      const first = matches()[0];
      if (event.key === "Enter" && first !== undefined) decide(first);
      if (event.key === "Escape") card.focus();
    });
    box.append(label, found);
    return box;
  };
  const features = (row, beside) => {
    const table = element("table");
    const head = element("tr");
    const names = ["this sample", ...beside.examples.map(([c]) => data.names[c])];
    head.append(element("th", "feature"), ...names.map((name) => element("th", name)));
    for (const cell of head.children) cell.scope = "col";
    table.append(head);
    beside.features.forEach((feature, k) => {
      const line = element("tr");
      const first = element("th", data.features[feature] ?? String(feature));
      first.scope = "row";
      line.append(first, ...beside.values.map((values) => element("td", String(values[k]))));
      table.append(line);
    });
    const caption = element("caption", beside.examples.length
      ? "Beside it, the nearest settled sample of each candidate; the features by which these differ most"
      : "The features that stand out");
    table.prepend(caption);
    const scroll = element("div", "", "scroll");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.ariaLabel = "Features";
    scroll.append(table);
    return scroll;
  };
  const examples = (beside) => {
    const list = element("ul", "", "examples");
    for (const [c, example] of beside.examples) {
      const item = element("li");
      if (data.pictures?.[example]) item.append(picture(example, ""));
      item.append(element("span", data.names[c]), element("small", data.id[example]));
      list.append(item);
    }
    return list;
  };
  const show = () => {
    const row = current();
    const n = decided.size;
    const reached = data.queue.length ? `${count(n)} of ${count(Math.max(data.goal, n))} decided` : "Nothing to decide";
    get("progress").textContent = `${reached}, expected errors left: ${count(Math.round(doubt / 10000))}`;
    get("bar").max = Math.max(data.goal, n, 1);
    get("bar").value = n;
    if (row === undefined) {
      card.replaceChildren(element("p", data.queue.length
        ? "That was all. Save your decisions, then: ipll update MODEL --decisions FILE"
        : "There is nothing to decide."));
      return;
    }
    const said = decided.get(row);
    const set = [...data.sets[data.set[row]]].sort((a, b) => (b === data.label[row]) - (a === data.label[row]));
    const next = data.runner[row];
    if (next >= 0 && !set.includes(next)) set.splice(1, 0, next);
    const text = element("div", "", "text");
    text.append(element("h3", data.id[row]));
    const source = data.sources[data.source[row]];
    text.append(element("p", `${source ? `${source}, row ${data.row[row]}. ` : ""}The model settled on ${
      data.names[data.label[row]]}, ${(data.confidence[row] / 100).toFixed(1)} % sure.${
      said ? ` You said: ${word(said.name)}.` : ""}`, "note"));
    const choices = element("div", "", "choices");
    set.forEach((c, k) => {
      const made = button(data.names[c], k < 9 ? String(k + 1) : "", () => decide(c), "candidate");
      if (said?.name === c) made.ariaPressed = "true";
      choices.append(made);
    });
    const rest = element("div", "", "choices");
    rest.append(
      button("none of these", "0", () => decide(-1)), button("skip", "→", () => decide(null)),
      button("back", "←", back), button("undo", "U", undo),
    );
    text.append(choices, others(), rest);
    const parts = [];
    if (data.pictures?.[row]) {
      const frame = element("div", "", "photo");
      frame.append(picture(row, `Sample ${data.id[row]}`));
      parts.push(frame);
    }
    parts.push(text);
    const beside = data.beside[row];
    if (beside) parts.push(data.pictures ? examples(beside) : features(row, beside));
    card.replaceChildren(...parts);
  };

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea");
    const here = event.target === document.body || desk.contains(event.target);
    if (typing || !here || event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = { "0": () => decide(-1), ArrowRight: () => decide(null), ArrowLeft: back, u: undo, U: undo };
    acts["/"] = () => get("another")?.focus();
    const chosen = card.querySelectorAll(".candidate")[Number(event.key) - 1];
    const act = chosen ? () => chosen.click() : acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  // A spreadsheet would run what looks like a formula: it gets an apostrophe, which is taken off where it is read.
  const live = (text) => /^'*[=+\-@\t\r]/.test(text)
    && !/^'*(?:[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf|nan)|[=+\-@])$/.test(text);
  const written = (text) => {
    const cell = live(text) ? `'${text}` : text;
    return /[",\r\n]/.test(cell) || cell !== cell.trim() ? `"${cell.replaceAll('"', '""')}"` : cell;
  };
  const csv = () => {
    const lines = ["id,class,who,when,audit"];
    for (const { row, name, who: by, when } of done) {
      if (name !== null) lines.push([data.id[row], word(name), by, when, data.audit].map(written).join(","));
    }
    return `${lines.join("\r\n")}\r\n`;
  };
  get("save").addEventListener("click", () => {
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    link.download = `decisions-${data.audit}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    tell(`Saved ${count(decided.size)} as ${link.download}. Next: ipll update MODEL --decisions ${link.download}`);
  });

  const cells = (text) => { // of a CSV file: rows of cells
    const found = [[]];
    const part = /("(?:[^"]|"")*"|[^",\r\n]*)(,|\r?\n|$)/gy;
    for (let match = part.exec(text); match && part.lastIndex <= text.length; match = part.exec(text)) {
      const raw = match[1].startsWith('"') ? match[1].slice(1, -1).replaceAll('""', '"') : match[1].trim();
      found.at(-1).push(raw.startsWith("'") && live(raw) ? raw.slice(1) : raw);
      if (match[2] === "" ) break;
      if (match[2] !== ",") found.push([]);
    }
    return found.filter((one) => one.length > 1 || one[0]);
  };
  const read = (text) => {
    const [head, ...lines] = cells(text.replace(/^\ufeff/, ""));
    const column = (name) => (head ?? []).indexOf(name);
    if (column("id") < 0 || column("class") < 0) throw new Error("it has no columns id and class");
    return lines.map((line, i) => {
      const one = (name) => line[column(name)] ?? "";
      if (one("audit") && one("audit") !== data.audit) {
        throw new Error(`row ${i + 2} was decided on another audit (${one("audit")}; this is ${data.audit})`);
      }
      const row = rowOf(one("id"));
      if (row === undefined) throw new Error(`row ${i + 2}: there is no sample ${one("id")}`);
      const name = one("class") === data.none ? -1 : numbers.get(one("class"));
      if (name === undefined) throw new Error(`row ${i + 2}: there is no class ${one("class")}`);
      return { row, name, who: one("who"), when: one("when") };
    });
  };
  get("load").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    try {
      const loaded = read(await file.text());
      const fresh = new Set(loaded.map((one) => one.row));
      done = [...done.filter((one) => !fresh.has(one.row)), ...new Map(loaded.map((one) => [one.row, one])).values()];
      finish(0);
      tell(`Loaded ${count(loaded.length)} from ${file.name}`);
    } catch (error) {
      tell(`Nothing was loaded from ${file.name}: ${error.message}.`);
    }
    event.target.value = "";
  });
  order.addEventListener("change", () => { at = next(0); show(); });
  who.addEventListener("change", store);
  restore();
  index();
  at = next(0);
  desk.hidden = false;
  show();
})();
