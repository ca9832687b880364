// The frame: which app is shown, whether the daemon is well, and the way
// between the views. The address says what is shown: #/app/SLUG/VIEW.

import { api } from "./api.js";
import { h, fill, name, shown, bytes, count, moment, say, trouble, underWay } from "./dom.js";
import { menu, uncovered, closeAll } from "./layers.js";
import { listen } from "./keys.js";
import { mention } from "./names.js";
import { watch } from "./link.js";
import { timeline, notice } from "./timeline.js";
import { storage } from "./storage.js";
import { audit } from "./audit.js";
import { cover } from "./cover.js";

const views = { timeline: ["Timeline", timeline], storage: ["Storage", storage], audit: ["Audit", audit], protects: ["Protects", cover] };
const main = document.getElementById("main");

let apps = [];
let leave = new AbortController(); // ends what the view that is left still does
let kept = {}; // what stays of the view when it is drawn anew

function where() {
  const [kind, slug, view] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { kind, slug, view: view in views ? view : "timeline" };
}

let waits = false; // for what is open above to close

// show draws what the address says; moved tells that it has become another. What is open above stays: it is waited for.
async function show(moved) {
  if (!moved) {
    if (waits) return;
    waits = true;
    await uncovered();
    waits = false;
  }
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  if (moved) kept = {};
  try {
    const [list, status] = await Promise.all([api.apps(), api.status()]);
    if (!moved) await uncovered();
    if (signal.aborted) return;
    apps = list;
    frame(status);
    const at = where();
    if (at.kind === "health") health(status);
    else if (!apps.length) empty(signal);
    else await appView(at.kind === "app" ? at : { slug: apps[0].slug, view: "timeline" }, signal);
  } catch (err) {
    if (!signal.aborted) failed(err);
  }
  if (moved) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0); // the header belongs to what is shown
  }
}

function failed(err) {
  document.title = "mulligan";
  if (err.kind === "unauthenticated") {
    fill(main, h("section", { class: "center" },
      h("img", { src: "icon.svg", alt: "", width: 72, height: 72 }),
      h("h1", {}, "Nobody is logged in here"),
      h("p", {}, "This command opens the page:"), command("mulligan ui")));
    return;
  }
  fill(main, trouble(err), h("p", {}, h("button", { type: "button", onclick: () => show() }, "Try again")));
}

// frame draws the way to the other apps, and the daemon's state.
function frame(status) {
  const at = where();
  const current = at.kind === "health" ? null : apps.find((a) => a.slug === at.slug) ?? apps[0];
  const list = apps.filter((a) => !a.fork || a === current);
  const dot = (a) => h("span", { class: `dot ${a.problems?.length ? "warn" : a.state}`, "aria-hidden": "true" });
  fill(document.getElementById("apps"), list.length > 0 && menu({
    label: current ? `App ${current.slug}: choose another` : "Choose an app", cls: "chooser",
    face: h("span", { class: "chosen" }, current ? [dot(current), name(current.slug, "")] : "Apps", h("span", { "aria-hidden": "true" }, "▾")),
    items: () => list.map((a) => ({ text: [dot(a), name(a.slug, "")], href: `#/app/${encodeURIComponent(a.slug)}`, current: a === current })),
  }));
  const problems = status.problems?.length ?? 0;
  const el = document.getElementById("health");
  el.className = "health" + (problems ? " warn" : "");
  fill(el, h("span", { class: `dot ${problems ? "warn" : "running"}`, "aria-hidden": "true" }),
    h("span", {}, problems ? count(problems, "problem") : "daemon well"));
}

// command shows one to type, with a button that copies it.
function command(text) {
  return h("p", { class: "command" }, h("code", {}, text), h("button", { type: "button", class: "primary", onclick: () =>
    navigator.clipboard.writeText(text).then(() => say("Copied."), () => say("This browser does not let the page copy: mark the text.")) }, "Copy"));
}

function empty(signal) {
  // Whoever runs the command looks here for what it did.
  const look = setInterval(() => api.apps().then((list) => { if (list.length && !signal.aborted) show(); }, () => {}), 2000);
  signal.addEventListener("abort", () => clearInterval(look));
  document.title = "mulligan";
  fill(main, h("section", { class: "center" },
    h("img", { src: "icon.svg", alt: "", width: 72, height: 72 }),
    h("h1", {}, "No app yet"),
    h("p", {}, "In the folder of a project, run"), command("mulligan init"),
    h("p", { class: "quiet" }, "It says what it will protect, and the app is shown here.")));
}

async function appView({ slug, view }, signal) {
  const a = await api.app(slug);
  if (signal.aborted) return;
  document.title = `${a.slug} · mulligan`;
  const line = h("p", { class: "quiet" });
  let told;
  const tell = (now) => {
    const news = [now.state, now.busy, now.following].join();
    if (news !== told) fill(line, name(now.workspace), state(now), now.fork ? origin(now) : ""); // else a link in it would lose the focus
    told = news;
  };
  tell(a);
  follow(a, tell, signal);
  if (kept.app !== a.slug || kept.view !== view) kept = { app: a.slug, view, head: h("div", {}), body: h("div", { class: "view" }) };
  await views[view][1](a, kept.body, signal, () => show(), kept);
  if (signal.aborted) return;
  fill(kept.head,
    h("header", { class: "app-head" },
      h("div", {},
        h("h1", {}, name(a.slug, "")),
        line)),
    h("div", { id: "live", role: "status" }, view === "timeline" && a.busy ? notice(underWay(a.busy)) : null),
    (a.problems ?? []).map((p) => h("p", { class: "notice warn" }, shown(p))),
    h("nav", { class: "tabs", "aria-label": "Views of the app" }, Object.entries(views).map(([key, [label]]) =>
      h("a", { href: `#/app/${encodeURIComponent(a.slug)}/${key}`, "aria-current": key === view ? "page" : null }, label))));
  if (!kept.body.isConnected) fill(main, kept.head, kept.body);
}

// follow keeps what is told of the app's state true. The end of an operation that the view began with draws the view anew.
function follow(a, tell, signal) {
  const timer = setInterval(async () => {
    if (document.hidden) return;
    const now = await api.app(a.slug).catch(() => null); // the link says so when the daemon is gone
    if (!now || signal.aborted) return;
    if (a.busy && !now.busy) show();
    else tell(now);
  }, 2000);
  signal.addEventListener("abort", () => clearInterval(timer));
}

// origin says which app a fork is of, and from where.
function origin(a) {
  const parent = apps.find((p) => p.app_id === a.fork.parent);
  return [" · fork of ", parent ? h("a", { href: `#/app/${encodeURIComponent(parent.slug)}` }, name(parent.slug, "")) : "an app that is gone", " at ", mention(parent?.slug ?? "", a.fork.origin)];
}

function state(a) {
  const words = { running: "running", stopped: "stopped", failed: "failed" };
  const follows = { watching: "every turn is kept", starting: "beginning to follow its files", rescanning: "looking at its files again", degraded: "not every turn is kept", noting: "" };
  return [a.state !== "none" && (words[a.state] ?? a.state), // an app without a unit never runs: there is nothing to say
    a.busy && underWay(a.busy), a.following && (follows[a.following] ?? a.following)].filter(Boolean).map((part) => [" · ", part]);
}

function health(s) {
  document.title = "health · mulligan";
  const rows = [["Version", s.version], ["Runs as", s.mode === "host" ? "the host's daemon" : "a user's daemon"], ["Process", s.pid],
    ["Socket", s.socket], ["State folder", s.state_dir], ["Up since", moment(s.started_at)], ["Apps", s.apps], ["Store", bytes(s.store_bytes)]];
  const part = (title, list, none, cls) => [h("h2", {}, title),
    list?.length ? h("ul", { class: "plain" }, list.map((p) => h("li", { class: `notice ${cls}` }, shown(p)))) : h("p", { class: "quiet" }, none)];
  fill(main, h("h1", {}, "The daemon"),
    h("dl", { class: "facts" }, rows.map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, v instanceof Node ? v : shown(v))))),
    part("Problems", s.problems, "None.", "warn"),
    part("Recovered at its last start", s.recovered, "There was nothing to recover.", "good"),
    h("p", { class: "row end" }, h("button", { type: "button", onclick: () => api.leave().then(() => show(true), failed) }, "Log out of this page")));
}

window.addEventListener("hashchange", () => { closeAll(); show(true); });
listen();
window.addEventListener("api-unreachable", watch(() => show()));
api.session().catch(() => {}); // its key is needed when the daemon is gone; show says what is wrong
show();
