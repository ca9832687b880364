// What differs between a checkpoint and a later state, as lists and diffs.

import { api } from "./api.js";
import { h, fill, name, shown, count, dialog, trouble } from "./dom.js";

const PAGE = 100;
const signs = { create: ["+", "created", "plus"], modify: ["~", "modified", "tilde"], delete: ["−", "deleted", "minus"] };

export function changesDialog(app, cp, against) {
  dialog("What changed", (body, _, box) => {
    box.classList.add("wide");
    const out = h("div", {});
    const to = h("select", { id: "against", onchange: () => load() },
      against !== "now" ? h("option", { value: against }, "the next checkpoint") : null, h("option", { value: "now" }, "now"));
    body.append(h("p", {}, "From ", h("code", {}, cp.checkpoint_id), " to ", h("label", { for: "against", class: "hidden" }, "Compare with"), to), out);
    const load = () => list(app, cp, to.value, out);
    load();
  });
}

async function list(app, cp, against, out, offset = 0) {
  if (!offset) fill(out, h("p", { class: "quiet", role: "status" }, "Comparing…"));
  try {
    const d = await api.diff(app.slug, cp.checkpoint_id, { against, limit: PAGE, offset });
    if (!offset) {
      fill(out, h("p", { role: "status" }, d.total ? `${count(d.total, "change")}.` : "Nothing differs."),
        (d.unknown ?? []).map((l) => h("p", { class: "notice warn small" }, `${shown(l)} can't tell what differs.`)));
    }
    out.append(...(d.changes ?? []).map((c) => change(app, cp, against, c)));
    const next = offset + (d.changes?.length ?? 0);
    if (next < d.total && d.changes?.length) {
      out.append(h("p", {}, h("button", { type: "button", onclick: (e) => { e.currentTarget.parentElement.remove(); list(app, cp, against, out, next); } }, `Show more of ${d.total}`)));
    }
  } catch (err) {
    out.append(trouble(err));
  }
}

// line shows one change in a line: its sign, path and summary.
export function line(c) {
  const [sign, word, cls] = signs[c.operation] ?? ["?", c.operation, ""];
  return [h("span", { class: `sign ${cls}`, title: word, "aria-hidden": "true" }, sign), h("span", { class: "hidden" }, `${word}: `),
    c.layer && c.layer !== "files" ? h("span", { class: "badge" }, shown(c.layer)) : null, name(c.path), c.summary ? h("span", { class: "quiet small" }, " ", shown(c.summary)) : null];
}

// change can be opened; only then its diff is asked for.
function change(app, cp, against, c) {
  const box = h("details", { class: "change" }, h("summary", {}, line(c)));
  box.addEventListener("toggle", async () => {
    if (!box.open || box.dataset.read) return;
    box.dataset.read = "1";
    try {
      const d = await api.diff(app.slug, cp.checkpoint_id, { against, path: c.path, patch: true, limit: PAGE });
      const found = (d.changes ?? []).find((x) => x.path === c.path && x.layer === c.layer);
      box.append(found?.patch ? patch(found.patch) : h("p", { class: "quiet" }, `No diff: ${shown(found?.no_patch || "its content is the same")}.`));
    } catch (err) {
      box.append(trouble(err));
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
