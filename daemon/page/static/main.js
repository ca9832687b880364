// The frame: which app is shown, whether the daemon is well, and the way
// between the views. The address says what is shown: #/app/SLUG/VIEW.

import { api } from "./api.js";
import { h, fill, name, shown, bytes, count, moment, trouble } from "./dom.js";
import { timeline } from "./timeline.js";
import { storage } from "./storage.js";
import { audit } from "./audit.js";
import { cover } from "./cover.js";

const views = { timeline: ["Timeline", timeline], storage: ["Storage", storage], audit: ["Audit", audit], protects: ["Protects", cover] };
const main = document.getElementById("main");

let apps = [];
let leave = new AbortController(); // ends what the view that is left still does

function where() {
  const [kind, slug, view] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { kind, slug, view: view in views ? view : "timeline" };
}

async function show(moved) {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  try {
    const [list, status] = await Promise.all([api.apps(), api.status()]);
    if (signal.aborted) return;
    apps = list;
    frame(status);
    const at = where();
    if (at.kind === "health") health(status);
    else if (!apps.length) empty();
    else await appView(at.kind === "app" ? at : { slug: apps[0].slug, view: "timeline" }, signal);
  } catch (err) {
    if (!signal.aborted) failed(err);
  }
  if (moved) main.focus({ preventScroll: false });
}

function failed(err) {
  document.title = "mulligan";
  if (err.kind === "unauthenticated") {
    fill(main, h("section", { class: "center" },
      h("h1", {}, "Nobody is logged in here"),
      h("p", {}, "Run ", h("code", {}, "mulligan ui"), " and follow its link.")));
    return;
  }
  fill(main, trouble(err), h("p", {}, h("button", { type: "button", onclick: () => show() }, "Try again")));
}

// frame draws the list of apps and the daemon's state.
function frame(status) {
  const at = where();
  const current = at.kind === "app" ? at.slug : at.kind === "health" ? null : apps[0]?.slug;
  fill(document.getElementById("apps"), h("ul", {}, apps.filter((a) => !a.fork || a.slug === current).map((a) => h("li", {},
    h("a", { href: `#/app/${encodeURIComponent(a.slug)}`, "aria-current": a.slug === current ? "page" : null },
      h("span", { class: `dot ${a.problems?.length ? "warn" : a.state}`, "aria-hidden": "true" }), name(a.slug, ""))))));
  const problems = status.problems?.length ?? 0;
  const el = document.getElementById("health");
  el.className = "health" + (problems ? " warn" : "");
  fill(el, h("span", { class: `dot ${problems ? "warn" : "running"}`, "aria-hidden": "true" }),
    problems ? count(problems, "problem") : "daemon well");
}

function empty() {
  fill(main, h("section", { class: "center" },
    h("h1", {}, "No app yet"),
    h("p", {}, "In the folder of one, run ", h("code", {}, "mulligan init"), "."),
    h("p", {}, h("button", { type: "button", onclick: () => show() }, "Look again"))));
}

async function appView({ slug, view }, signal) {
  const a = await api.app(slug);
  if (signal.aborted) return;
  document.title = `${a.slug} · mulligan`;
  const body = h("div", { class: "view" });
  fill(main,
    h("header", { class: "app-head" },
      h("div", {},
        h("h1", {}, name(a.slug, "")),
        h("p", { class: "quiet" }, name(a.workspace), " · ", state(a), a.fork ? origin(a) : "")),
      h("div", { class: "app-actions", id: "app-actions" })),
    (a.problems ?? []).map((p) => h("p", { class: "notice warn" }, shown(p))),
    h("nav", { class: "tabs", "aria-label": "Views of the app" }, Object.entries(views).map(([key, [label]]) =>
      h("a", { href: `#/app/${encodeURIComponent(a.slug)}/${key}`, "aria-current": key === view ? "page" : null }, label))),
    body);
  await views[view][1](a, body, signal, () => show());
}

// origin says which app a fork is of, and from where.
function origin(a) {
  const parent = apps.find((p) => p.app_id === a.fork.parent);
  return [" · fork of ", parent ? h("a", { href: `#/app/${encodeURIComponent(parent.slug)}` }, name(parent.slug, "")) : "an app that is gone", " at ", h("code", {}, shown(a.fork.origin))];
}

function state(a) {
  const words = { none: "no unit", running: "running", stopped: "stopped", failed: "failed" };
  const follows = { watching: "every turn is kept", starting: "beginning to follow its files", rescanning: "looking at its files again", degraded: "not every turn is kept" };
  return h("span", {}, words[a.state] ?? a.state, a.busy ? ` · ${a.busy} under way` : "", a.following ? ` · ${follows[a.following] ?? a.following}` : "");
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

window.addEventListener("hashchange", () => show(true));
show();
