// Gives a list of what is wrong with the layout of the page as it is drawn.
(() => {
  const faults = [];
  const width = document.documentElement.clientWidth;
  const root = document.querySelector("dialog[open]") ?? document.body;
  const what = (e) => `${e.tagName.toLowerCase()}.${e.className} "${(e.getAttribute("aria-label") ?? e.textContent).trim().slice(0, 40)}"`;
  const scrolls = (e) => { for (let p = e.parentElement; p; p = p.parentElement) if (["auto", "scroll", "hidden"].includes(getComputedStyle(p).overflowX)) return true; return false; };
  const drawn = (e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && e.getBoundingClientRect().width > 1;

  if (document.documentElement.scrollWidth > width) faults.push(`the page is ${document.documentElement.scrollWidth} wide in a window of ${width}`);
  if (root.scrollWidth > root.clientWidth + 1) faults.push(`${what(root)} scrolls sideways: ${root.scrollWidth} in ${root.clientWidth}`);
  for (const e of root.querySelectorAll(".scroll, .changes")) {
    if (width < 400 && e.scrollWidth > e.clientWidth + 1) faults.push(`${what(e)} scrolls sideways: ${e.scrollWidth} in ${e.clientWidth}`);
  }
  for (const e of root.querySelectorAll("*")) {
    const box = e.getBoundingClientRect();
    if (drawn(e) && !scrolls(e) && (box.right > width + 1 || box.left < -1)) faults.push(`${what(e)} reaches from ${box.left} to ${box.right}`);
  }

  // WCAG 2.2, 2.5.8: 24 by 24 for what is not in a sentence.
  const targets = [...root.querySelectorAll("button:not(.link), [role=menuitem], summary, .tabs a, .filters label, .health")].filter(drawn);
  for (const e of targets) {
    const box = e.getBoundingClientRect();
    if (box.width < 24 || box.height < 24) faults.push(`${what(e)} is only ${box.width} by ${box.height}`);
    for (const other of targets) {
      if (other === e || e.contains(other) || other.contains(e) || e.closest(".menu-box") || other.closest(".menu-box")) continue;
      const o = other.getBoundingClientRect();
      if (box.left < o.right - 1 && o.left < box.right - 1 && box.top < o.bottom - 1 && o.top < box.bottom - 1) faults.push(`${what(e)} covers ${what(other)}`);
    }
  }

  for (const head of root.querySelectorAll(".view .head")) {
    const main = head.querySelectorAll(".main-action").length, menus = head.querySelectorAll(".menu").length;
    if (main !== 1 || menus !== 1 || head.querySelectorAll(".acts > *").length !== 2) faults.push(`${what(head)} has ${main} main actions and ${menus} menus`);
  }
  const loud = [...root.querySelectorAll("button.primary")].filter(drawn);
  if (loud.length > 1) faults.push(`more than one button stands out: ${loud.map(what)}`);
  return faults;
})()
