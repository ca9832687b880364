// The keyboard: single keys for what is done most, and the list of them.

import { h } from "./dom.js";
import { dialog, covered } from "./layers.js";

const STORE = "mulligan-single-keys"; // "off": only the keys that every page has
const enabled = () => localStorage.getItem(STORE) !== "off";

const table = [
  ["?", "this list"],
  ["c", "create a checkpoint"],
  ["j", "the next row"],
  ["k", "the row before"],
  ["Enter", "the row's main action: roll back, with a preview first"],
  ["d", "what changed since the row's checkpoint"],
  ["m", "the row's menu: fork, pin, verify, delete; arrows move in it"],
  ["n", "what changed until now"],
  ["a", "another app"],
  ["/", "find a checkpoint: by words of its title or notes, or by its id"],
  ["1 – 4", "timeline, storage, audit, protects"],
  ["Esc", "close a dialog or a menu, as Back does"],
  ["Tab", "every other button, link and field"],
];

export function keysDialog() {
  dialog("Keys", (body) => body.append(
    h("table", { class: "keys" }, h("caption", { class: "hidden" }, "Keys and what they do"),
      h("tbody", {}, table.map(([key, what]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, key)), h("td", {}, what))))),
    h("p", {}, h("label", {}, h("input", { type: "checkbox", id: "single-keys", checked: enabled(),
      onchange: (e) => localStorage.setItem(STORE, e.currentTarget.checked ? "on" : "off") }), " Single letters and digits do something"))));
}

const rows = () => [...document.querySelectorAll(".view .head .main-action")];

// step moves the focus by so many rows.
function step(by) {
  const all = rows();
  const at = all.findIndex((b) => b.closest("li, .branch") === document.activeElement?.closest("li, .branch"));
  const to = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))];
  to?.focus({ preventScroll: true });
  to?.scrollIntoView({ block: "center" });
}

const ofRow = (what) => document.activeElement?.closest("li, .branch")?.querySelector(what);

const acts = {
  "?": keysDialog,
  c: () => document.querySelector("[data-do=create]"),
  n: () => document.querySelector("[data-do=now]"),
  j: () => step(1),
  k: () => step(-1),
  d: () => document.activeElement?.closest("li.cp")?.dispatchEvent(new CustomEvent("changes")),
  m: () => ofRow(".menu > button"),
  a: () => document.querySelector("#apps .menu > button"),
  "/": () => document.getElementById("search")?.focus(),
};
for (let i = 1; i <= 4; i++) acts[i] = () => document.querySelector(`.tabs a:nth-child(${i})`);

// listen makes the keys work.
export function listen() {
  document.getElementById("keys").addEventListener("click", keysDialog);
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.altKey || e.metaKey || e.isComposing || covered() || !enabled()) return;
    if (e.target.closest("input:not([type=radio], [type=checkbox]), textarea, select")) return;
    const act = Object.hasOwn(acts, e.key) && acts[e.key];
    if (!act) return;
    e.preventDefault();
    const button = act();
    if (button instanceof HTMLElement) button.click();
  });
}
