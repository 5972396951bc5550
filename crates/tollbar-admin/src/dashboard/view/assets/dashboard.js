// Live updates of the overview. Every page works without this file: it only saves pressing reload.

const slots = () => document.querySelectorAll("[data-live]");
const state = document.getElementById("live-state");
const pause = document.getElementById("pause");

let source = null;
let isPaused = false;
let isPressed = false;

function tell(text, kind) {
  if (!state) return;
  state.textContent = text;
  state.classList.toggle("on", kind === "on");
  state.classList.toggle("off", kind === "off");
}

// A part that holds the focus, or a selection, is left alone: nobody loses their place.
function isInUse(slot) {
  const selection = document.getSelection();
  const isSelected = selection && !selection.isCollapsed && slot.contains(selection.anchorNode);
  return isSelected || slot.contains(document.activeElement);
}

function update(event) {
  if (isPaused || isPressed) return;
  const parts = JSON.parse(event.data);
  for (const slot of slots()) {
    const html = parts[slot.id];
    // The same encoder wrote and escaped it as wrote the page.
    if (typeof html === "string" && !isInUse(slot)) slot.innerHTML = html;
  }
  tell(`live, ${parts.now} UTC`, "on");
}

function open() {
  if (source || document.hidden) return;
  source = new EventSource("/live");
  source.addEventListener("overview", update);
  source.addEventListener("error", () => {
    const isOver = source && source.readyState === EventSource.CLOSED;
    tell(isOver ? "not live: reload the page" : "reconnecting…", "off");
  });
}

function close() {
  if (source) source.close();
  source = null;
}

if (slots().length > 0 && state) {
  open();
  // A page that nobody sees needs no updates.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  // Kept for the way back, it would not be live.
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
}

// A link that is replaced between the press of a button and its release would not be followed.
addEventListener("pointerdown", () => (isPressed = true));
for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => (isPressed = false));

if (pause) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Resume" : "Pause";
    if (isPaused) tell("paused", "off");
  });
}

// A denial is explained on the spot; without this, on a page of its own.
const sheet = document.getElementById("sheet");
const body = document.getElementById("sheet-body");

async function explain(link) {
  const answer = await fetch(`${link.href}&part=1`, { headers: { accept: "text/html" } });
  if (!answer.ok) throw new Error(String(answer.status));
  body.innerHTML = await answer.text();
  sheet.showModal();
}

if (sheet && body) {
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element && event.target.closest("a[data-sheet]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    explain(link).catch(() => location.assign(link.href));
  });
  sheet.addEventListener("click", (event) => {
    if (event.target === sheet) sheet.close();
  });
}
