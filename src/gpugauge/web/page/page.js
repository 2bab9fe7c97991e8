"use strict";
// Replaces <main> by a fresh one every few seconds. Without this script the page reloads as a whole.
const PERIOD = 5000;
const lost = document.getElementById("lost");
let answered = new Date();

function reading() {
  const selection = document.getSelection();
  return document.hidden || (selection !== null && !selection.isCollapsed);
}

async function refresh() {
  const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(PERIOD) });
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = fresh.querySelector("main");
  if (main === null) throw new Error(`${answer.status}: not the page`);
  if (fresh.documentElement.dataset.version !== document.documentElement.dataset.version) location.reload();
  document.querySelector("main").replaceWith(document.adoptNode(main));
  answered = new Date();
}

async function tick() {
  if (!reading()) {
    try {
      await refresh();
      lost.hidden = true;
    } catch {
      // Written once, so that a screen reader says it once.
      if (lost.hidden) lost.textContent = `No answer since ${answered.toLocaleTimeString()}: these figures are old.`;
      lost.hidden = false;
    }
    document.body.classList.toggle("old", !lost.hidden);
  }
  setTimeout(tick, PERIOD);
}

setTimeout(tick, PERIOD);
document.addEventListener("visibilitychange", () => document.hidden || refresh().catch(() => {}));
