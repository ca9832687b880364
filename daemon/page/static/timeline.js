// The timeline: "now" on top, below it every checkpoint, newest first, each with
// what made it and what can be done with it.

import { api } from "./api.js";
import { h, fill, name, shown, bytes, count, time, day, dialog, say, trouble } from "./dom.js";
import { rollbackDialog } from "./rollback.js";
import { changesDialog } from "./changes.js";
import { branches, forkDialog } from "./forks.js";

const PAGE = 50;
const kinds = {
  manual: ["●", "manual", "Made by a person or a tool"],
  agent: ["◆", "turn", "Made by itself before a turn's first write"],
  deploy: ["▲", "deploy", "Made by a deployment"],
  "pre-rollback": ["↺", "safety", "The state just before a rollback: the way forward again"],
};

export async function timeline(app, body, signal, reload) {
  const view = { app, body, signal, reload, filter: "", list: [], turns: new Map(), forks: [], more: false };
  actions(view);
  await load(view);
  // Several events come together: one look is enough for them.
  let soon;
  api.follow(app.slug, (kind) => {
    if (kind === "stage" || document.querySelector("dialog[open]")) return;
    clearTimeout(soon);
    soon = setTimeout(() => !signal.aborted && load(view).catch(() => {}), 300);
  }, signal);
}

// refresh shows the newest state, also when the view was drawn anew meanwhile.
const refresh = (view) => (view.signal.aborted ? view.reload() : load(view));

async function load(view) {
  const { app, signal } = view;
  const [page, turns, forks] = await Promise.all([
    api.checkpoints(app.slug, { limit: PAGE, trigger: view.filter }), api.turns(app.slug, 500), api.forks(app.slug)]);
  if (signal.aborted) return;
  view.list = page.checkpoints ?? [];
  view.more = view.list.length === PAGE;
  view.forks = forks;
  view.turns = new Map(turns.map((t) => [t.checkpoint_id, t]));
  draw(view);
}

function actions(view) {
  const { app } = view;
  fill(document.getElementById("app-actions"),
    h("button", { type: "button", onclick: () => pruneDialog(view) }, "Prune…"),
    h("button", { type: "button", onclick: () => forkDialog(view) }, "Fork…"),
    h("button", { type: "button", id: "forward", hidden: true }, "↻ Roll forward…"),
    h("button", { type: "button", class: "primary", onclick: () => createDialog(view) }, "Create checkpoint"));
  // The last rollback's safety checkpoint is the way forward.
  api.checkpoints(app.slug, { trigger: "pre-rollback", limit: 1 }).then(({ checkpoints }) => {
    const button = document.getElementById("forward");
    if (!checkpoints?.length || !button) return;
    button.hidden = false;
    button.addEventListener("click", () => rollbackDialog(app, checkpoints[0], view.reload, "Roll forward"));
  }, () => {});
}

function draw(view) {
  const { app, body, list } = view;
  const focused = document.activeElement?.dataset?.key;
  const days = Map.groupBy(list, (cp) => day(cp.created_at));
  fill(body,
    filters(view),
    h("ol", { class: "line", "aria-label": "Now" }, h("li", { class: "now" },
      h("span", { class: "node", "aria-hidden": "true" }, "◉"),
      h("div", { class: "entry" }, h("p", { class: "title" }, h("strong", {}, "Now")),
        list.length && h("p", {}, h("button", { type: "button", class: "link", "data-key": "now", onclick: () => changesDialog(app, list[0], "now") },
          "What changed since the newest checkpoint"))))),
    elsewhere(view),
    [...days].map(([title, cps]) => [h("h2", { class: "day" }, title),
      h("ol", { class: "line", "aria-label": title }, cps.map((cp) => entry(view, cp, list[list.indexOf(cp) - 1])))]),
    !list.length && h("p", { class: "quiet" }, view.filter ? "None of this kind." : "No checkpoint yet. The first costs the most; the ones after it only what changed."),
    view.more && h("p", {}, h("button", { type: "button", onclick: (e) => older(view, e.currentTarget) }, "Show older")));
  if (focused) body.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

// elsewhere shows the forks of checkpoints that are not in the list: older ones, and deleted ones.
function elsewhere(view) {
  const rest = view.forks.filter((f) => !view.list.some((cp) => cp.checkpoint_id === f.fork.origin));
  return rest.length > 0 && h("div", { class: "entry" }, h("p", { class: "quiet small" }, "Forks of checkpoints that are not shown"), branches(view, rest));
}

function filters(view) {
  const option = (value, label) => h("label", {},
    h("input", { type: "radio", name: "filter", value, checked: view.filter === value, "data-key": `filter-${value}`,
      onchange: () => { view.filter = value; load(view).catch((err) => fill(view.body, trouble(err))); } }), h("span", {}, label));
  return h("fieldset", { class: "filters" }, h("legend", { class: "hidden" }, "Show"),
    option("", "All"), Object.entries(kinds).map(([k, [, label]]) => option(k, label)));
}

async function older(view, button) {
  button.disabled = true;
  try {
    const page = await api.checkpoints(view.app.slug, { limit: PAGE, trigger: view.filter, before: view.list.at(-1).checkpoint_id });
    view.list.push(...(page.checkpoints ?? []));
    view.more = page.checkpoints?.length === PAGE;
    draw(view);
  } catch (err) {
    button.replaceWith(trouble(err));
  }
}

// entry shows one checkpoint. newer is the one that came after it, if any.
function entry(view, cp, newer) {
  const { app } = view;
  const [sign, label, meaning] = kinds[cp.trigger] ?? ["●", cp.trigger, ""];
  const turn = view.turns.get(cp.checkpoint_id);
  const key = (what) => `${what}-${cp.checkpoint_id}`;
  const button = (what, text, onclick, cls) => h("button", { type: "button", class: cls, "data-key": key(what), "aria-label": `${text.replace("…", "")} ${cp.checkpoint_id}`, onclick }, text);
  return h("li", { class: cp.trigger, id: cp.checkpoint_id },
    h("span", { class: "node", "aria-hidden": "true" }, sign),
    h("article", { class: "entry" },
      h("p", { class: "title" }, time(cp.created_at), h("span", { class: `badge ${cp.trigger}`, title: meaning }, label),
        cp.pinned && h("span", { class: "badge pinned" }, "pinned"),
        h("strong", {}, cp.notes ? name(cp.notes, "note") : turn ? turnTitle(turn) : "")),
      turn && turnChanges(turn),
      h("p", { class: "quiet small" }, h("code", {}, cp.checkpoint_id), ` · ${bytes(cp.size_bytes)} of its own`,
        cp.ref ? [" · git ", h("code", {}, cp.ref.slice(0, 10))] : "", cp.quiesced ? "" : " · taken while the app ran",
        (cp.db_snapshots ?? []).length ? ` · ${count(cp.db_snapshots.length, "database")}` : ""),
      (cp.warnings ?? []).map((w) => h("p", { class: "notice warn small" }, shown(w))),
      h("div", { class: "row" },
        button("back", "Roll back…", () => rollbackDialog(app, cp, view.reload), "primary"),
        button("changes", "Changes", () => changesDialog(app, cp, newer?.checkpoint_id ?? "now"), ""),
        button("fork", "Fork…", () => forkDialog(view, cp), ""),
        button("pin", cp.pinned ? "Unpin" : "Pin", (e) => pin(view, cp, e.currentTarget), ""),
        button("verify", "Verify", (e) => verify(view, cp, e.currentTarget), ""),
        button("delete", "Delete…", () => deleteDialog(view, cp), "danger")),
      branches(view, view.forks.filter((f) => f.fork.origin === cp.checkpoint_id))));
}

function turnTitle(t) {
  const who = t.inferred ? "somebody's writes after a quiet time" : `${t.agent || "an agent"}'s turn`;
  return h("span", {}, "before ", name(who, ""), t.message_id ? [" ", name(t.message_id, "quiet")] : "");
}

function turnChanges(t) {
  const c = t.changes;
  const paths = c.paths ?? [];
  const total = c.created + c.modified + c.deleted;
  return h("p", { class: "small" },
    h("span", { class: "plus" }, `+${c.created}`), " ", h("span", { class: "tilde" }, `~${c.modified}`), " ", h("span", { class: "minus" }, `−${c.deleted}`),
    h("span", { class: "hidden" }, ` (${c.created} created, ${c.modified} modified, ${c.deleted} deleted)`), "  ",
    paths.slice(0, 4).map((p, i) => [i ? ", " : "", name(p)]), total > 4 ? ` and ${total - Math.min(4, paths.length)} more` : "");
}

// act runs what a button asks for, and shows beside it what went wrong.
async function act(view, button, work) {
  const row = button.closest(".row");
  row.parentElement.querySelector(":scope > .notice.bad")?.remove();
  button.disabled = true;
  try {
    await work();
  } catch (err) {
    row.after(trouble(err));
  } finally {
    button.disabled = false;
  }
}

const pin = (view, cp, button) => act(view, button, async () => {
  await api.pin(view.app.slug, cp.checkpoint_id, !cp.pinned);
  say(cp.pinned ? "No longer pinned." : "Pinned: nothing deletes it.");
  await refresh(view);
});

const verify = (view, cp, button) => act(view, button, async () => {
  const res = await api.verify(view.app.slug, cp.checkpoint_id);
  if (res.ok) return say(`${cp.checkpoint_id} is whole: all that is stored of it was read and checked.`);
  throw { message: "What is stored of it is damaged.", hint: (res.problems ?? []).map((p) => `${p.layer}: ${p.message}`).join("; ") };
});

function createDialog(view) {
  dialog("Create a checkpoint", (body, close) => {
    const notes = h("input", { type: "text", id: "notes", maxlength: 1000, autocomplete: "off" });
    const pinned = h("input", { type: "checkbox", id: "pinned" });
    const live = h("input", { type: "checkbox", id: "live" });
    const out = h("div", {});
    const go = h("button", { type: "submit", class: "primary" }, "Create");
    body.append(h("form", { onsubmit: async (e) => {
      e.preventDefault();
      go.disabled = true;
      fill(out, h("p", { class: "quiet", role: "status" }, "Capturing…"));
      try {
        const cp = await api.create(view.app.slug, { notes: notes.value, pinned: pinned.checked, quiesce: live.checked ? "none" : "stop" });
        close();
        say(`Checkpoint ${cp.checkpoint_id} stands.`);
        view.reload();
      } catch (err) {
        go.disabled = false;
        fill(out, trouble(err));
      }
    } },
    h("label", { for: "notes" }, "Notes"), notes,
    h("p", {}, h("label", {}, pinned, " Pin it: keep it until it is unpinned")),
    h("p", {}, h("label", {}, live, " Don't stop the app for it")),
    out, h("p", { class: "row end" }, h("button", { type: "button", onclick: close }, "Cancel"), go)));
  });
}

function deleteDialog(view, cp) {
  dialog("Delete a checkpoint", (body, close) => {
    const out = h("div", {});
    const go = h("button", { type: "button", class: "danger", onclick: async () => {
      go.disabled = true;
      try {
        await api.remove(view.app.slug, cp.checkpoint_id);
        close();
        say("Deleted.");
        view.reload();
      } catch (err) {
        fill(out, trouble(err));
      }
    } }, "Delete for good");
    body.append(h("p", {}, "Delete ", h("code", {}, cp.checkpoint_id), cp.notes ? [" (", name(cp.notes, "note"), ")"] : "", "?"),
      h("p", {}, `That frees ${bytes(cp.size_bytes)}. It can't be taken back.`),
      out, h("p", { class: "row end" }, h("button", { type: "button", onclick: close }, "Keep it"), go));
  });
}

function pruneDialog(view) {
  const r = view.app.retention;
  dialog("Prune", (body, close) => {
    const out = h("div", { role: "status" }, h("p", { class: "quiet" }, "Looking what would go…"));
    const go = h("button", { type: "button", class: "danger", disabled: true }, "Prune");
    body.append(h("p", {}, `Kept are pinned ones, the newest ${r.keep_last}, one a day for ${count(r.daily_days, "day")}, the newest ${r.keep_turns} of turns, and the newest ${r.keep_safety} from before rollbacks.`),
      out, h("p", { class: "row end" }, h("button", { type: "button", onclick: close }, "Cancel"), go));
    const failed = (err) => fill(out, trouble(err));
    api.prune(view.app.slug, true).then((res) => {
      const n = res.deleted?.length ?? 0;
      fill(out, h("p", {}, n ? `${count(n, "checkpoint")} would go, ${res.kept} would stay.` : `Nothing would go: all ${res.kept} stay.`));
      go.disabled = !n;
    }, failed);
    go.addEventListener("click", () => {
      go.disabled = true;
      api.prune(view.app.slug, false).then((res) => { close(); say(`${count(res.deleted?.length ?? 0, "checkpoint")} pruned.`); view.reload(); }, failed);
    });
  });
}
