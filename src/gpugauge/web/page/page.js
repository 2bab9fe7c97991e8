"use strict";
// Replaces <main> every few seconds. Without this script the whole page reloads.
const PERIOD_MILLISECONDS = 5000;
const lost = document.getElementById("lost");
let answered = new Date();

// Whether the page must not change: it is hidden, or text is selected.
function paused() {
  const selection = document.getSelection();
  return document.hidden || (selection !== null && !selection.isCollapsed);
}

async function refresh() {
  const timeout = AbortSignal.timeout(PERIOD_MILLISECONDS);
  const answer = await fetch(location.pathname, { cache: "no-store", signal: timeout });
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = fresh.querySelector("main");
  if (main === null) throw new Error(`${answer.status}: the reply is not the page`);
  if (fresh.documentElement.dataset.version !== document.documentElement.dataset.version) location.reload();
  document.querySelector("main").replaceWith(document.adoptNode(main));
  answered = new Date();
}

async function tick() {
  if (!paused()) {
    try {
      await refresh();
      lost.hidden = true;
    } catch {
      // Set once, so that a screen reader reads it once.
      if (lost.hidden) lost.textContent = `No answer since ${answered.toLocaleTimeString()}: these values are old.`;
      lost.hidden = false;
    }
    document.body.classList.toggle("old", !lost.hidden);
  }
  setTimeout(tick, PERIOD_MILLISECONDS);
}

setTimeout(tick, PERIOD_MILLISECONDS);
document.addEventListener("visibilitychange", () => document.hidden || refresh().catch(() => {}));
