"use strict";
// Updates <main> every few seconds, and folds, sorts and filters its table. Without this script the whole page reloads.
const PERIOD_MILLISECONDS = 5000;
const SAID_MILLISECONDS = 2000;
const STORED = "gpugauge.view";
const lost = document.getElementById("lost");
const said = document.getElementById("said");
let answered = new Date();
let paused = false;

// How the user looks at the table: kept while the tab is open.
const view = { filter: "", only: false, sort: "", descending: false, folded: {}, all: null, ...stored() };

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(STORED)) ?? {};
  } catch {
    return {};
  }
}

function changed() {
  try {
    sessionStorage.setItem(STORED, JSON.stringify(view));
  } catch {
    // Without storage a reload forgets the view.
  }
  arrange(document);
}

// Orders, folds and filters the table of the page, or of a fresh page before it is taken over.
function arrange(root) {
  const table = root.getElementById("gpus");
  root.getElementById("pause")?.setAttribute("aria-pressed", paused);
  if (table === null) return;
  sort(table);
  const words = view.filter.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const body of table.tBodies) {
    const shown = filter(body, words);
    found += shown && ofGpu(body);
    body.hidden = !shown;
    fold(body, words.length > 0);
  }
  const all = [...table.tBodies].filter(ofGpu).length;
  const problems = filterProblems(root, table, words);
  root.getElementById("found").textContent = words.length > 0 || view.only ? `${found} of ${all} GPUs${problems}` : "";
  root.getElementById("fold").textContent = folds(table) ? "Unfold all" : "Fold all";
}

// Whether a body of the table is that of a GPU. The others stand first and last.
function ofGpu(body) {
  return !["no GPU", "ended"].includes(body.dataset.key);
}

// The rows of a process or a MIG device, each with its notes.
function groups(body) {
  const found = [];
  for (const row of body.rows) {
    if (row.matches(".process, .mig")) found.push([row]);
    else if (found.length > 0 && row.dataset.key.endsWith(" notes")) found.at(-1).push(row);
  }
  return found;
}

function filter(body, words) {
  const matches = (rows) => words.every((word) => rows.some((row) => row.textContent.toLowerCase().includes(word)));
  const troubled = (element) => element.matches(".bad, .poor") || element.querySelector(".mark.bad, .mark.poor") !== null;
  const users = groups(body);
  const whole = matches([...body.rows].filter((row) => row.matches(".gpu, .notes") && !row.dataset.key.endsWith(" notes")));
  let some = false;
  let device = [];
  for (const rows of users) {
    const shown = (whole || matches([body.rows[0], ...rows])) && (!view.only || troubled(rows[0]) || troubled(body.rows[0]));
    for (const row of rows) row.hidden = !shown;
    if (rows[0].matches(".mig")) device = rows;
    else if (shown && rows[0].matches(".nested")) for (const row of device) row.hidden = false;
    some ||= shown;
  }
  return (whole && (!view.only || troubled(body))) || some;
}

// Hides the problems of what the words hide. The most severe one stays, and those of the node: a user
// who looks for their own programs must not miss that a GPU fails. Returns how many are left.
function filterProblems(root, table, words) {
  const rows = [...table.tBodies].filter((body) => !body.hidden).flatMap((body) => [body, ...body.rows]);
  const shown = new Set(rows.filter((row) => !row.hidden).map((row) => row.dataset.key.split(" ")[0]));
  const items = [...root.querySelectorAll(".problems li")];
  for (const [place, item] of items.entries()) {
    const of = item.dataset.of.split(" ").filter(Boolean);
    const text = item.textContent.toLowerCase();
    const matches = words.every((word) => text.includes(word)) || of.some((key) => shown.has(key));
    item.hidden = place > 0 && of.length > 0 && !matches;
  }
  return items.length > 0 ? `, ${items.filter((item) => !item.hidden).length} of ${items.length} problems` : "";
}

function folds(table) {
  return view.all ?? [...table.tBodies].every((body) => body.classList.contains("folded") || body.querySelector(".fold") === null);
}

function fold(body, filtered) {
  const button = body.querySelector(".fold");
  if (button === null) return;
  const folded = view.folded[body.dataset.key] ?? view.all ?? (!filtered && "folded" in body.dataset);
  body.classList.toggle("folded", folded);
  button.setAttribute("aria-expanded", !folded);
}

function value(row, column) {
  const text = row.querySelector(`:scope > .${column}`)?.dataset.sort;
  return text === undefined ? null : Number(text);
}

function sort(table) {
  for (const heading of table.tHead.rows[0].cells) {
    // Without a chosen column faults are first, which is the order of none.
    const sorted = view.sort && heading.querySelector(`[data-sort="${view.sort}"]`) !== null;
    if (sorted) heading.setAttribute("aria-sort", view.descending ? "descending" : "ascending");
    else heading.removeAttribute("aria-sort");
  }
  const column = view.sort || "name";
  const sign = view.sort && view.descending ? -1 : 1;
  // Rows without a value are last.
  const order = (one, other) => {
    const [a, b] = [value(one, column), value(other, column)];
    return a === null || b === null ? (a === null) - (b === null) : sign * (a - b);
  };
  const bodies = [...table.tBodies].filter(ofGpu);
  place(table, [...bodies].sort((one, other) => order(one.rows[0], other.rows[0])), bodies);
  if (column === "name") return;
  for (const body of table.tBodies) {
    // Those of a MIG device stay below it.
    const places = [[]];
    for (const rows of groups(body)) {
      if (rows[0].matches(".mig")) places.push([]);
      else places.at(-1).push(rows);
    }
    for (const users of places.filter((users) => users.length > 1)) {
      const sorted = [...users].sort(([one], [other]) => order(one, other));
      place(body, sorted.flat(), users.flat());
    }
  }
}

// Puts elements into an order, at the place of the first of them.
function place(parent, wanted, present) {
  if (wanted.every((element, number) => element === present[number])) return;
  const mark = document.createComment("");
  parent.insertBefore(mark, present[0]);
  for (const element of wanted) parent.insertBefore(element, mark);
  mark.remove();
}

// Changes an element into a fresh one, and only what differs: focus, selection and scroll position stay.
function update(old, fresh) {
  if (old.isEqualNode(fresh) || selected(old)) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const keyed = new Map([...old.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
  let next = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = child.dataset?.key;
    const same = key ? keyed.get(key) : next;
    const usable = same && same.nodeName === child.nodeName && (key || !same.dataset?.key);
    if (!usable) {
      old.insertBefore(document.adoptNode(child), next);
      continue;
    }
    if (same === next) next = next.nextSibling;
    else old.insertBefore(same, next);
    update(same, child);
  }
  while (next !== null) {
    const unused = next;
    next = next.nextSibling;
    unused.remove();
  }
}

// Whether text of a paragraph or a row is selected.
function selected(element) {
  const selection = document.getSelection();
  if (selection === null || selection.isCollapsed || element.nodeType !== Node.ELEMENT_NODE) return false;
  return element.matches("p, li, tr, dl > div") && selection.containsNode(element, true);
}

async function refresh() {
  const timeout = AbortSignal.timeout(PERIOD_MILLISECONDS);
  const answer = await fetch(location.pathname, { cache: "no-store", signal: timeout });
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = fresh.querySelector("main");
  if (main === null) throw new Error(`${answer.status}: the reply is not the page`);
  if (fresh.documentElement.dataset.version !== document.documentElement.dataset.version) location.reload();
  answered = new Date();
  if (paused) return;
  arrange(fresh);
  const focused = document.activeElement;
  update(document.querySelector("main"), main);
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

async function tick() {
  if (!document.hidden && !paused) {
    try {
      await refresh();
      lost.hidden = true;
    } catch {
      // Set once, so that a screen reader reads it once.
      if (lost.hidden) lost.textContent = `No answer since ${answered.toISOString().slice(11, 19)} UTC: these values are old.`;
      lost.hidden = false;
    }
    document.body.classList.toggle("old", !lost.hidden);
  }
  setTimeout(tick, PERIOD_MILLISECONDS);
}

// The clipboard of the browser is there only with HTTPS or on this machine.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  if (!done) throw new Error("refused");
}

async function copied(button) {
  const text = button.dataset.copy;
  try {
    await copy(text);
    say(`Copied: ${text}`);
    button.textContent = "copied";
  } catch {
    say(`The browser does not allow to copy: ${text}`);
  }
  setTimeout(() => (button.textContent = button.dataset.copy), SAID_MILLISECONDS);
}

function say(text) {
  said.textContent = text;
  setTimeout(() => (said.textContent = ""), SAID_MILLISECONDS);
}

function pause() {
  paused = !paused;
  say(paused ? "Paused" : "Goes on");
  arrange(document);
  document.body.classList.toggle("paused", paused);
  if (!paused) refresh().catch(() => {});
}

function sorted(column) {
  // The worst, or the largest, first; then the other way; then by number again.
  const first = column !== "name";
  if (view.sort !== column) [view.sort, view.descending] = [column, first];
  else if (view.descending === first) view.descending = !first;
  else view.sort = "";
  changed();
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (button === null) return;
  if (button.matches(".copy")) copied(button);
  else if (button.id === "pause") pause();
  else if (button.id === "fold") {
    [view.all, view.folded] = [!folds(document.getElementById("gpus")), {}];
    changed();
  } else if (button.matches(".fold")) {
    view.folded[button.closest("tbody").dataset.key] = button.getAttribute("aria-expanded") === "true";
    changed();
  } else if (button.dataset.sort) sorted(button.dataset.sort);
});
document.addEventListener("input", ({ target }) => {
  if (target.id === "filter") {
    view.filter = target.value;
    for (const more of document.querySelectorAll("main section details")) more.open ||= target.value !== "";
  }
  if (target.id === "only") view.only = target.checked;
  changed();
});
document.addEventListener("visibilitychange", () => document.hidden || paused || refresh().catch(() => {}));

const input = document.getElementById("filter");
if (input !== null) [input.value, document.getElementById("only").checked] = [view.filter, view.only];
arrange(document);
setTimeout(tick, PERIOD_MILLISECONDS);
