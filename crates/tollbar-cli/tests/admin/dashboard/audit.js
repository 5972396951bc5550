// What is wrong with the page for people who use a keyboard, a screen reader or tired eyes: a list of
// sentences, empty where nothing is.
const wrong = [];
const visible = (it) => it.checkVisibility({ visibilityProperty: true });
const named = (it) => (it.getAttribute("aria-label") || it.textContent || it.alt || "").trim() !== "";
const told = (it) => it.outerHTML.slice(0, 120);

for (const it of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
  if (visible(it) && it.labels.length === 0 && !it.getAttribute("aria-label")) wrong.push(`no label: ${told(it)}`);
}
for (const it of document.querySelectorAll("a, button, summary")) {
  if (visible(it) && !named(it)) wrong.push(`no name: ${told(it)}`);
}
for (const it of document.querySelectorAll("img:not([alt])")) wrong.push(`no alt: ${told(it)}`);
const ids = [...document.querySelectorAll("[id]")].map((it) => it.id);
ids.filter((it, at) => ids.indexOf(it) !== at).forEach((it) => wrong.push(`id twice: ${it}`));
for (const it of document.querySelectorAll("[aria-labelledby], [aria-describedby], label[for]")) {
  for (const name of ["aria-labelledby", "aria-describedby", "for"]) {
    const id = it.getAttribute(name);
    if (id && !document.getElementById(id)) wrong.push(`${name} leads nowhere: ${told(it)}`);
  }
}
if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
if (document.querySelectorAll("main").length !== 1) wrong.push("not one main");
if (document.documentElement.lang !== "en") wrong.push("no language");
if (document.querySelector("[tabindex]:not([tabindex='0']):not([tabindex='-1'])")) wrong.push("an order of its own");
if (document.querySelector("[style], script:not([src]), style")) wrong.push("something inline");
if (document.documentElement.scrollWidth > innerWidth) wrong.push(`wider than the screen: ${document.documentElement.scrollWidth}`);

// Contrast, by the formula of WCAG 2: 4.5 at least, for all text there is.
const channel = (it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
const parsed = (text) => (text.match(/[\d.]+/g) || []).map(Number);
function ground(it) {
  for (let at = it; at; at = at.parentElement) {
    const color = parsed(getComputedStyle(at).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
}
function contrast(front, back) {
  const [high, low] = [luminance(front), luminance(back)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const it = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || !visible(it) || it.closest("svg, option")) continue;
  const ratio = contrast(parsed(getComputedStyle(it).color), ground(it));
  if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)}: ${told(it)}`);
}
for (const it of document.querySelectorAll("input, textarea")) {
  if (!visible(it)) continue;
  const ratio = contrast(parsed(getComputedStyle(it, "::placeholder").color), ground(it));
  if (ratio < 4.5) wrong.push(`contrast of a placeholder ${ratio.toFixed(2)}: ${told(it)}`);
}

// Whoever tabs along sees where they are.
for (const it of document.querySelectorAll("a, button, input:not([type=hidden]), select, textarea, summary")) {
  if (!visible(it)) continue;
  it.focus({ focusVisible: true, preventScroll: true });
  if (document.activeElement !== it) wrong.push(`takes no focus: ${told(it)}`);
  else if (getComputedStyle(it).outlineStyle === "none") wrong.push(`focus cannot be seen: ${told(it)}`);
  it.blur();
}
return [...new Set(wrong)].slice(0, 20);
