// What differs between a checkpoint and a later state: files as a list with
// diffs, a repository's own files folded into a line, databases as tables.

import { api } from "./api.js";
import { h, fill, name, shown, count, trouble } from "./dom.js";
import { dialog } from "./layers.js";
import { titled } from "./names.js";

const PAGE = 500;
const signs = { create: ["+", "created", "plus"], modify: ["~", "modified", "tilde"], delete: ["−", "deleted", "minus"] };

export function changesDialog(app, cp, against) {
  dialog("What changed", (body, _, box) => {
    box.classList.add("wide");
    const out = h("div", {});
    const to = h("select", { id: "against", onchange: () => load() },
      against !== "now" ? h("option", { value: against }, "the next checkpoint") : null, h("option", { value: "now" }, "now"));
    body.append(h("p", {}, "From ", titled(cp), " to ", h("label", { for: "against", class: "hidden" }, "Compare with"), to), out);
    const load = () => { // into a part of its own: an answer that is no longer waited for goes nowhere
      const part = h("div", {});
      fill(out, part);
      list(app, cp, to.value, part);
    };
    load();
  });
}

// list fills out with the changes from offset on, and below them a button for more.
async function list(app, cp, against, out, offset = 0) {
  fill(out, h("p", { class: "quiet", role: "status" }, "Comparing…"));
  try {
    const d = await api.diff(app.slug, cp.checkpoint_id, { against, limit: PAGE, offset });
    const { files, repos, tables } = sorted(d.changes ?? []);
    const diff = (c) => change(app, cp, against, c);
    fill(out, !offset && [h("p", { role: "status" }, d.total ? `${count(d.total, "change")}.` : "Nothing differs."),
      (d.unknown ?? []).map((l) => h("p", { class: "notice warn small" }, `${shown(l)} can't tell what differs.`)),
      (d.unreadable ?? []).map((l) => h("p", { class: "notice warn small" }, shown(l)))],
    [...tables].map(([layer, cs]) => table(layer, cs)), files.map(diff), [...repos].map(([dir, cs]) => repository(dir, cs, diff)));
    const next = offset + (d.changes?.length ?? 0);
    if (next < d.total && d.changes?.length) {
      const more = h("div", {}, h("p", {}, h("button", { type: "button", onclick: () => list(app, cp, against, more, next) }, `Show more of ${d.total}`)));
      out.append(more);
    }
  } catch (err) {
    fill(out, trouble(err), h("p", {}, h("button", { type: "button", onclick: () => list(app, cp, against, out, offset) }, "Try again")));
  }
  if (document.activeElement === document.body) out.querySelector("summary, button")?.focus(); // the button that asked for it is gone
}

// brief shows changes without their diffs.
export function brief(changes, label) {
  const { files, repos, tables } = sorted(changes);
  const item = (c) => h("p", { class: "item" }, line(c));
  return h("div", { class: "changes", tabindex: "0", role: "region", "aria-label": label },
    [...tables].map(([layer, cs]) => table(layer, cs)), files.map(item), [...repos].map(([dir, cs]) => repository(dir, cs, item)));
}

// sorted parts the changes by how they are shown. A dry run names a table by its layer and its name in one path.
function sorted(changes) {
  const files = [], repos = new Map(), tables = new Map();
  const into = (map, key, c) => map.set(key, [...(map.get(key) ?? []), c]);
  for (const c of changes) {
    const [, layer, path] = c.layer ? (c.layer.startsWith("db:") ? [null, c.layer, c.path] : []) : /^(db:[^:]*):(.+)$/s.exec(c.path) ?? [];
    const repo = /^(.*\/)?\.git\//s.exec(c.path);
    if (layer) into(tables, layer, { ...c, path });
    else if (repo && (c.layer ?? "files") === "files") into(repos, repo[0], c);
    else files.push(c);
  }
  return { files, repos, tables };
}

// repository folds what git keeps for itself: what it did shows in the files.
function repository(dir, changes, item) {
  const objects = changes.filter((c) => c.path.startsWith(dir + "objects/"));
  const rest = changes.filter((c) => !objects.includes(c));
  return h("details", { class: "change repository" },
    h("summary", {}, h("span", { class: "sign tilde", title: "modified", "aria-hidden": "true" }, "~"), name(dir.replace(/\/$/, "")), h("span", { class: "quiet small" }, ` git's own files: ${changes.length}`)),
    h("div", { class: "inner" }, rest.map(item),
      objects.length > 0 && h("details", { class: "change" }, h("summary", {}, name(`${dir}objects`), h("span", { class: "quiet small" }, ` ${count(objects.length, "object")}`)),
        h("div", { class: "inner" }, objects.map((c) => h("p", { class: "item" }, line(c)))))));
}

// table shows what changed in a database: an object a row, with the numbers of its rows apart from what changed of its form.
function table(layer, changes) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Changes of ${layer}` }, h("table", { class: "db" },
    h("caption", {}, "Database ", name(layer.replace(/^db:/, ""))),
    h("thead", {}, h("tr", {}, ["Table", "Rows", "What changed"].map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", {}, changes.map((c) => {
      const [sign, word, cls] = signs[c.operation] ?? ["?", c.operation, ""];
      const { rows, form } = parts(c.summary ?? "");
      return h("tr", {}, h("th", { scope: "row" }, h("span", { class: `sign ${cls}`, "aria-hidden": "true" }, sign), h("span", { class: "hidden" }, `${word}: `), name(c.path)),
        h("td", { class: "num" }, rows), h("td", {}, form.map((f) => h("code", { class: "ddl" }, shown(f)))));
    }))));
}

// parts takes the numbers of rows out of a summary. What it does not know stays with the form.
function parts(summary) {
  const form = [];
  let rows = "";
  for (const part of summary.split("; ")) {
    const was = /^(\d+) rows, were (\d+) \((\d+) (more|fewer)\)$/.exec(part);
    const only = /^(?:it had )?(\d+ rows)/.exec(part);
    if (was) rows = [`${was[2]} → ${was[1]} `, h("span", { class: was[4] === "more" ? "plus" : "minus" }, `${was[4] === "more" ? "+" : "−"}${was[3]}`)];
    else if (only) rows = shown(part.replace(", as many as before, with other content", ", other content"));
    else if (part) form.push(part);
  }
  return { rows, form };
}

// line shows one change in a line: its sign, path and summary.
function line(c) {
  const [sign, word, cls] = signs[c.operation] ?? ["?", c.operation, ""];
  return [h("span", { class: `sign ${cls}`, title: word, "aria-hidden": "true" }, sign), h("span", { class: "hidden" }, `${word}: `),
    c.layer && c.layer !== "files" ? h("span", { class: "badge" }, shown(c.layer)) : null, name(c.path), c.summary ? h("span", { class: "quiet small" }, " ", shown(c.summary)) : null];
}

// change can be opened; only then its diff is asked for.
function change(app, cp, against, c) {
  const part = h("div", {});
  const box = h("details", { class: "change" }, h("summary", {}, line(c)), part);
  box.addEventListener("toggle", async () => {
    if (!box.open || box.dataset.read) return;
    box.dataset.read = "1";
    try {
      const d = await api.diff(app.slug, cp.checkpoint_id, { against, path: c.path, patch: true, limit: 100 });
      const found = (d.changes ?? []).find((x) => x.path === c.path && x.layer === c.layer);
      fill(part, found?.patch ? patch(found.patch) : h("p", { class: "quiet" }, `No diff: ${shown(found?.no_patch || "its content is the same")}.`));
    } catch (err) {
      fill(part, trouble(err));
      delete box.dataset.read; // opening it again asks again
    }
  });
  return box;
}

function patch(text) {
  const lines = text.replace(/\n$/, "").split("\n");
  return h("pre", { class: "patch", tabindex: "0", "aria-label": "Unified diff" }, lines.slice(0, 2000).map((l) => {
    const kind = l.startsWith("+++") || l.startsWith("---") ? "head" : { "+": "plus", "-": "minus", "@": "hunk" }[l[0]] ?? "";
    return h("span", { class: kind }, shown(l, "\t") + "\n");
  }), lines.length > 2000 ? h("span", { class: "hunk" }, `… ${lines.length - 2000} more lines`) : null);
}
