// Gives what is drawn as lines: a row's texts with where its buttons are, and every other text as it stands.
(() => {
  const root = document.querySelector("dialog[open]") ?? document.body;
  const drawn = (e) => e.checkVisibility({ visibilityProperty: true }) && e.getBoundingClientRect().width > 1;
  const text = (e) => e.innerText.replace(/\s+/g, " ").trim();
  const lines = [];
  const lost = document.querySelector("#lost:popover-open");
  if (lost) lines.push("! " + text(lost));
  const walk = (e) => {
    if (!drawn(e) || e.id === "said" || e.id === "lost" || e.getAttribute("aria-hidden") === "true") return;
    if (e.matches(".head")) {
      const at = e.querySelector(".text").getBoundingClientRect(), acts = e.querySelector(".acts").getBoundingClientRect();
      for (const p of e.querySelectorAll(".text > *")) lines.push("  ".repeat(e.closest(".branch") ? 2 : 1) + text(p));
      lines.push(`  [${[...e.querySelectorAll(".acts button")].map(text).join("] [")}] ${acts.top >= at.bottom - 1 ? "below" : "beside"}`);
    } else if (e.matches("button, [role=menuitem], .filters label")) lines.push(`[${text(e)}]`);
    else if (e.matches("tr")) lines.push("| " + [...e.children].map(text).join(" | "));
    else if (e.matches("h1, h2, h3")) lines.push("# " + text(e));
    else if (e.matches("p, dt, dd, .tabs a, summary, label, caption, .health, .brand, .chosen, .stages li") && !e.querySelector("button, input")) {
      if (text(e)) lines.push(text(e));
    } else for (const child of e.children) walk(child);
  };
  walk(root);
  return lines;
})()
