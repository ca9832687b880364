// A rollback: first what it would do, then, once a person has seen that, its six
// stages as they happen, then the receipt.

import { api } from "./api.js";
import { h, fill, name, shown, count, duration, notice, noticeFailure, say, trouble } from "./dom.js";
import { dialog } from "./layers.js";
import { label, titled } from "./names.js";
import { brief } from "./changes.js";

const stages = ["safety-checkpoint", "stop-unit", "vm-revert", "db-restore", "start-unit", "health-check"];
// meaning says what each stage does.
export const meaning = {
  "safety-checkpoint": "Keep the state as it is now", "stop-unit": "Stop the app", "vm-revert": "Put files and disks back",
  "db-restore": "Put databases back", "start-unit": "Start the app", "health-check": "Ask the app how it is",
};
const marks = { ok: "✓", failed: "✗", skipped: "–", running: "…" };

export function rollbackDialog(app, cp, reload, verb = "Roll back") {
  dialog(verb, (body, close, box) => {
    box.classList.add("wide");
    preview({ app, cp, reload, verb, body, close, box });
  });
}

function preview(r) {
  const scope = h("textarea", { id: "scope", rows: 2, spellcheck: "false", "aria-describedby": "scope-help" });
  const reason = h("input", { type: "text", id: "reason", maxlength: 500, autocomplete: "off" });
  const undo = h("input", { type: "checkbox", id: "undo-unhealthy" });
  const out = h("div", { class: "preview" });
  const go = h("button", { type: "button", class: "primary", disabled: true }, r.verb);
  const wanted = () => scope.value.split("\n").map((s) => s.trim()).filter(Boolean);
  let seen = 0; // of the newest preview asked for
  let touched = false; // whether scope was edited since then

  async function look() {
    const mine = ++seen;
    touched = false;
    go.disabled = true;
    fill(out, h("p", { class: "quiet", role: "status" }, "Looking what would change…"));
    try {
      const res = await api.preview(r.app.slug, r.cp.checkpoint_id, { scope: wanted() });
      if (mine !== seen) return;
      fill(out, would(res));
      go.disabled = false;
    } catch (err) {
      if (mine === seen) fill(out, trouble(err));
    }
  }
  scope.addEventListener("input", () => { seen++; go.disabled = touched = true; });
  scope.addEventListener("blur", () => { if (touched) look(); }); // browsers send no change event if the text became again what it was
  go.addEventListener("click", () => run(r, { scope: wanted(), reason: reason.value, on_unhealthy: undo.checked ? "undo" : "keep" }));
  fill(r.body,
    h("p", {}, `${r.verb} `, h("strong", {}, name(r.app.slug, "")), " to ", titled(r.cp),
      ". The state it has now is kept as a safety checkpoint first: this can be taken back."),
    out,
    h("details", {}, h("summary", {}, "Choices"),
      h("label", { for: "scope" }, "Only these, one a line"), scope,
      h("p", { class: "quiet small", id: "scope-help" }, "Paths in the workspace, and layer:NAME. Empty: everything."),
      h("label", { for: "reason" }, "Reason, for the audit"), reason,
      h("p", {}, h("label", {}, undo, " Take it back by itself where the health check fails after it"))),
    h("p", { class: "row end" }, h("button", { type: "button", onclick: r.close }, "Cancel"), go));
  r.box.querySelector("header button").focus();
  look();
}

// would shows what a dry run tells.
export function would(res, title = "") {
  const changes = res.changes_reverted ?? [];
  return [
    title && h("p", { class: "quiet" }, title, ":"),
    h("h3", { role: "status" }, res.changes_total ? `${count(res.changes_total, "change")} would be undone` : "Nothing would change"),
    changes.length > 0 && brief(changes, "Changes that would be undone"),
    changes.length < res.changes_total && h("p", { class: "quiet small" }, `The first ${changes.length} of ${res.changes_total}.`),
    (res.warnings ?? []).map((w) => h("p", { class: "notice warn small" }, shown(w))),
    (res.assumptions ?? []).length > 0 && h("details", {}, h("summary", {}, "What this takes for granted"), h("ul", {}, res.assumptions.map((a) => h("li", {}, shown(a))))),
  ];
}

async function run(r, request) {
  const rows = new Map(stages.map((s) => [s, h("li", { class: "waiting", "data-stage": s }, h("span", { class: "mark", "aria-hidden": "true" }, "·"),
    h("span", {}, h("strong", {}, meaning[s])), h("span", { class: "took" }))]));
  const news = h("p", { class: "hidden", role: "status" });
  const end = h("div", {});
  fill(r.body, h("ol", { class: "stages", "aria-label": "Stages" }, [...rows.values()]), news, end);
  r.box.querySelector("header button").focus();
  const began = new Map();
  const tick = setInterval(() => {
    for (const [s, at] of began) rows.get(s).lastChild.textContent = duration(performance.now() - at);
  }, 100);
  try {
    const res = await api.rollback(r.app.slug, r.cp.checkpoint_id, request, (s) => {
      if (s.status === "running") began.set(s.stage, performance.now());
      else began.delete(s.stage);
      stage(rows.get(s.stage), s);
      if (s.status !== "running") news.textContent = `${meaning[s.stage]}: ${s.status}`;
    });
    if (!r.box.open) return ended(what(r), res);
    for (const s of res.stages ?? []) stage(rows.get(s.stage), s);
    fill(end, receipt(r, res));
  } catch (err) {
    if (!r.box.open) return noticeFailure(what(r), err);
    fill(end, trouble(err), h("p", { class: "row end" }, h("button", { type: "button", onclick: r.close }, "Close")));
  } finally {
    clearInterval(tick);
    r.box.addEventListener("close", r.reload);
  }
}

// what names the operation of a dialog.
const what = (r) => `${r.verb} ${r.app.slug} to ${label(r.cp) || r.cp.checkpoint_id}`;

// ended tells how an operation went whose dialog was closed meanwhile.
export function ended(operation, res) {
  notice(`${operation}: ${outcome(res)}`, !res.rolled_back, res.error?.message);
}

// outcome is the first line of a receipt.
function outcome(res) {
  if (res.rolled_back) return res.verification ? "Done, and proven" : "Done, not verified";
  return res.recovered ? "It failed; the app is back where it was" : "It failed";
}

function stage(row, s) {
  if (!row) return;
  row.className = s.status;
  row.firstChild.textContent = marks[s.status] ?? "?";
  row.lastChild.textContent = s.status === "running" ? "" : s.status === "skipped" ? "skipped" : duration(s.duration_ms);
  row.title = s.notes ?? "";
  if (s.notes && s.status !== "running" && !row.querySelector(".notes")) row.children[1].append(h("span", { class: "notes quiet small" }, shown(s.notes)));
}

export function receipt(r, res) {
  const v = res.verification;
  say(res.rolled_back ? "The rollback is done." : "The rollback failed.");
  const safety = res.safety_checkpoint;
  return [
    h("h3", { class: res.rolled_back ? "good" : "bad", role: "status" }, outcome(res)),
    res.error && trouble(res.error),
    v && h("table", { class: "small" }, h("caption", { class: "hidden" }, "Proof per layer"),
      h("thead", {}, h("tr", {}, ["Layer", "As at the checkpoint", "Hash"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, Object.entries(v.layers ?? {}).map(([layer, one]) => h("tr", {}, h("th", { scope: "row" }, shown(layer)),
        h("td", { class: one.match ? "good" : "bad" }, one.match ? "✓ yes" : "✗ no"), h("td", {}, h("code", {}, shown(String(one.post_state_hash).slice(0, 24)))))))),
    h("p", {}, `${count(res.changes_total ?? 0, "change")} undone. Confidence ${res.confidence}.`),
    (res.warnings ?? []).map((w) => h("p", { class: "notice warn small" }, shown(w))),
    h("p", { class: "row end" },
      safety && res.rolled_back && h("button", { type: "button", onclick: () => preview({ ...r, cp: safety, verb: "Roll forward" }) }, "↻ Roll forward again…"),
      h("button", { type: "button", class: "primary", onclick: r.close }, "Close")),
  ];
}
