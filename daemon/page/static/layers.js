// What lies above the page: dialogs, which Back and Escape close, and menus,
// which Escape and a click beside them close. The element that had the focus
// gets it back.

import { h, fill, noticeFailure, trouble } from "./dom.js";

// Each open dialog has an entry of its own in the browser's history, so that
// Back closes the dialog and does not leave the page.
const open = []; // what closes each
let leaving = 0;     // own steps back that the browser has not made yet
let afterwards = []; // what waits for them

history.scrollRestoration = "manual";
if (history.state?.dialogs) history.replaceState(null, ""); // the page was loaded anew with a dialog open

window.addEventListener("popstate", () => {
  if (leaving > 0) {
    if (--leaving === 0) for (const act of afterwards.splice(0)) act();
    return;
  }
  while (open.length > (history.state?.dialogs ?? 0)) open.at(-1)();
});

// dialog shows a modal one, which build fills.
export function dialog(title, build) {
  const back = document.activeElement;
  const heading = h("h2", { id: `dialog-${Date.now()}-${open.length}` }, title);
  const box = h("dialog", { "aria-labelledby": heading.id });
  const body = h("div", { class: "dialog-body" });
  // close ends it at once: the browser tells of the end only later.
  const close = () => {
    const depth = open.indexOf(close) + 1;
    if (!depth) return;
    open.splice(depth - 1, 1);
    box.close();
    box.remove();
    if (history.state?.dialogs === depth) { leaving++; history.back(); }
    if (back?.isConnected) back.focus();
  };
  const enter = () => { if (box.open) history.pushState({ dialogs: open.indexOf(close) + 1 }, ""); };
  box.append(h("header", {}, heading, h("button", { type: "button", class: "icon", "aria-label": "Close", onclick: close }, "✕")), body);
  box.addEventListener("close", close); // of Escape
  document.body.append(box);
  open.push(close);
  build(body, close, box);
  box.showModal();
  if (leaving) afterwards.push(enter);
  else enter();
  return box;
}

// failed tells why what a dialog was asked to do failed: in its part out, where go asks for it again. If the dialog was closed meanwhile, a
// notice tells it.
export function failed(box, out, go, err) {
  if (!box.open) return noticeFailure(box.querySelector("h2").textContent, err);
  fill(out, trouble(err));
  go.disabled = false;
  if (document.activeElement === document.body) go.focus(); // a button loses the focus when it is disabled
}

// covered tells whether a dialog or a menu is open: what lies below should not change now.
export const covered = () => open.length > 0 || document.querySelector("[role=menu]") !== null;

// uncovered waits until nothing is open.
export async function uncovered() {
  while (covered()) await new Promise((done) => { setTimeout(done, 500); });
}

// closeAll closes what is open, for another view.
export function closeAll() {
  while (open.length) open.at(-1)();
  dismiss?.(false);
}

let dismiss; // closes the menu that is open
let last = 0;

// menu is a button that opens a list. items gives them when it opens: each a
// label with what it does, or with the address that it leads to. about is shown below them.
export function menu({ label, face = "⋯", cls = "icon more", items, about, key }) {
  const id = `menu-${++last}`;
  const button = h("button", { type: "button", class: cls, "aria-haspopup": "menu", "aria-expanded": "false", "aria-label": label, "data-key": key }, face);
  const root = h("div", { class: "menu" }, button);
  button.addEventListener("click", () => (button.getAttribute("aria-expanded") === "true" ? dismiss(true) : show()));
  button.addEventListener("keydown", (e) => { if (e.key === "ArrowDown") { e.preventDefault(); show(); } });

  function show() {
    dismiss?.(false);
    const list = h("div", { role: "menu", id, "aria-label": label }, items().filter(Boolean).map((i) => item(i)));
    const box = h("div", { class: "menu-box" }, list, about ? h("div", { class: "about quiet small" }, about()) : null);
    const away = (e) => { if (!root.contains(e.target)) dismiss(false); };
    dismiss = (focus) => {
      document.removeEventListener("pointerdown", away);
      box.remove();
      button.setAttribute("aria-expanded", "false");
      button.removeAttribute("aria-controls");
      if (focus) button.focus();
      dismiss = undefined;
    };
    root.append(box);
    button.setAttribute("aria-expanded", "true");
    button.setAttribute("aria-controls", id);
    document.addEventListener("pointerdown", away);
    box.addEventListener("keydown", (e) => moveIn(e, [...list.children]));
    if (box.getBoundingClientRect().bottom > innerHeight) root.classList.add("up");
    else root.classList.remove("up");
    list.querySelector("[aria-current]")?.focus();
    if (!list.contains(document.activeElement)) list.firstChild?.focus();
  }

  function item({ text, act, href, danger, current }) {
    const props = { role: "menuitem", tabindex: "-1", class: danger ? "danger" : null, "aria-current": current ? "page" : null };
    return href
      ? h("a", { ...props, href, target: href.startsWith("#") ? null : "_blank", rel: href.startsWith("#") ? null : "noreferrer", onclick: () => dismiss(false) }, text)
      : h("button", { ...props, type: "button", onclick: () => { dismiss(true); act(); } }, text);
  }
  return root;
}

function moveIn(e, items) {
  const at = items.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[e.key];
  if (to !== undefined) items[(to + items.length) % items.length].focus();
  else if (e.key === "Escape") dismiss(true);
  else if (e.key === "Tab") return dismiss(true); // and on from the button
  else return;
  e.preventDefault();
  e.stopPropagation();
}
