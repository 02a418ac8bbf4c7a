// What a reader can do with a page on a screen: find, sort, unfold all at once. Without it the page is whole, and on paper it is
// whole whatever was looked for. It stands inside the page, whose policy names its SHA-256: no other script may run. It makes
// elements and sets their text, never markup.
"use strict";

const MANY_ROWS = 16; // a table of machines with more can be searched

const all = (selector) => [...document.querySelectorAll(selector)];

const make = (tag, attributes, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

const makeButton = (press, ...children) => {
  const made = make("button", { type: "button" }, ...children);
  made.addEventListener("click", press);
  return made;
};

// --- sort: presses on the head of a column are up, down, and as it was

const NEXT = { none: "ascending", ascending: "descending", descending: "none" };
const NUMBER = /^(?:[<>=]=? )?([-+]?\d[\d.]*(?:e[-+]?\d+)?)(?=[\s%]|$)/i; // "262.5 GB/s", ">= 345", "+4.9 %"; no version, no address
const collator = new Intl.Collator("en", { numeric: true });

const keyOf = (cell) => {
  const text = cell.textContent.trim();
  return { text, number: Number(cell.dataset.value ?? NUMBER.exec(text)?.[1] ?? NaN) };
};

const compare = (one, other, sign) => {
  if (isNaN(one.number) !== isNaN(other.number)) return isNaN(one.number) ? 1 : -1; // what is no number comes last, both ways
  return sign * (isNaN(one.number) ? collator.compare(one.text, other.text) : one.number - other.number);
};

const arrange = (body, rows, column, order) => {
  const sign = order === "descending" ? -1 : 1;
  const keyed = rows.map((row) => ({ row, key: keyOf(row.cells[column]) }));
  if (order !== "none") keyed.sort((one, other) => compare(one.key, other.key, sign)); // equal ones stay as they were
  const end = body.querySelector(":scope > .more");
  for (const { row } of keyed) body.insertBefore(row, end);
};

const makeSortable = (table) => {
  // The name of a validation and what is folded under it stay where they are.
  const bodies = [...table.tBodies].map((body) => [body, [...body.rows].filter((row) => !row.matches(".head, .more"))]);
  const heads = [...table.tHead.rows[0].cells];
  if (bodies.some(([, rows]) => rows.some((row) => row.cells.length !== heads.length))) return; // a cell that spans others
  heads.forEach((head, column) => {
    const differs = (row, _, rows) => row.cells[column].textContent !== rows[0].cells[column].textContent;
    if (!bodies.some(([, rows]) => rows.some(differs))) return;
    const press = () => {
      const order = NEXT[head.getAttribute("aria-sort") ?? "none"];
      for (const one of heads) one.removeAttribute("aria-sort");
      if (order !== "none") head.setAttribute("aria-sort", order);
      for (const [body, rows] of bodies) arrange(body, rows, column, order);
    };
    head.append(makeButton(press, ...head.childNodes));
  });
};

// --- find: all words of the field, and any of the states that are pressed

const TONES = ["bad", "open", "quiet", "good"];
const toneOf = (mark) => TONES.findIndex((tone) => mark.classList.contains(tone));
const nameOf = (mark) => mark.textContent.trim();

const addFinder = (place, label, what, items, hint) => {
  let texts; // made when they are asked for: of a large page they are large
  const marks = items.map((item) => [...item.querySelectorAll(":scope > tr > * > .mark")]);
  const states = marks.map((some) => new Set(some.map(nameOf)));
  const wanted = new Set();
  const field = make("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: hint });
  const told = make("p", { role: "status" });
  const folds = [...new Set(items.map((item) => item.closest("details")))].filter(Boolean);
  let were; // which folds were open before anything was looked for
  const unfoldFound = (isLooking) => {
    if (!isLooking) {
      were?.forEach((isOpen, at) => (folds[at].open = isOpen));
      were = undefined;
      return;
    }
    were ??= folds.map((one) => one.open);
    for (const item of items) if (!item.matches(".filtered")) item.closest("details")?.setAttribute("open", "");
  };
  const show = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length) texts ??= items.map((item) => item.textContent.toLowerCase());
    const isMeant = (at) => !wanted.size || [...wanted].some((state) => states[at].has(state));
    const isShown = (at) => isMeant(at) && words.every((word) => texts[at].includes(word));
    items.forEach((item, at) => item.classList.toggle("filtered", !isShown(at)));
    unfoldFound(words.length > 0 || wanted.size > 0);
    told.textContent = `${items.filter((item) => !item.matches(".filtered")).length} of ${items.length} ${what} shown`;
  };
  const makeChip = ([state, mark]) => {
    const chip = makeButton(() => {
      if (!wanted.delete(state)) wanted.add(state);
      chip.setAttribute("aria-pressed", wanted.has(state));
      show();
    }, mark.cloneNode(true), ` ${states.filter((some) => some.has(state)).length}`);
    chip.setAttribute("aria-pressed", "false");
    return chip;
  };
  const kinds = [...new Map(marks.flat().map((mark) => [nameOf(mark), mark]))].filter(([state]) => state !== "✓ held"); // most have it
  const chips = kinds.sort(([, one], [, other]) => toneOf(one) - toneOf(other)).map(makeChip);
  const clear = () => {
    field.value = "";
    for (const chip of chips) chip.setAttribute("aria-pressed", "false");
    wanted.clear();
    show();
  };
  const finder = make("div", { class: "finder", role: "search", "aria-label": label }, make("label", {}, `Find ${what} `, field));
  if (chips.length > 1) finder.append(make("div", { role: "group", "aria-label": "By state" }, ...chips));
  finder.append(told);
  field.addEventListener("input", show);
  finder.addEventListener("keydown", (event) => event.key === "Escape" && clear());
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']"); // to what is not shown: it is shown again
    if (link && items.some((item) => item.id === link.hash.slice(1) && item.matches(".filtered"))) clear();
  });
  place.before(finder);
  show();
};

// --- unfold: what style.css unfolds on paper is unfolded where the browser cannot do it, too

const unfold = (isOpen) => all("details").forEach((one) => (one.open = isOpen));
let unfolded = [];
addEventListener("beforeprint", () => {
  unfolded = all(":is(#wrong, #machines) details:not([open])");
  for (const one of unfolded) one.open = true;
});
addEventListener("afterprint", () => unfolded.forEach((one) => (one.open = false)));

// --- on this page

for (const table of all("table")) makeSortable(table);
for (const table of all(":is(#machines, #environment) table")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length > MANY_ROWS) addFinder(table.parentElement, table.caption.textContent, "rows", rows, "node, serial number");
}
const nodes = all("#side-by-side > .node");
if (nodes.length > MANY_ROWS) addFinder(nodes[0], "GPUs side by side", "nodes", nodes, "node");
const validations = all(".validations > tbody[id]");
if (validations.length > 1) {
  addFinder(document.querySelector("#validations > .subject"), "Every validation", "validations", validations, "node, serial number, metric");
}
document.querySelector("nav")?.append(makeButton(() => unfold(true), "Expand all"), makeButton(() => unfold(false), "Collapse all"));
