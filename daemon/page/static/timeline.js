// The timeline: "now" on top, below it every checkpoint, newest first, each a row
// that says what made it and when, with one main action and a menu.

import { api } from "./api.js";
import { h, fill, name, shown, bytes, count, time, day, noticeFailure, say, trouble } from "./dom.js";
import { dialog, failed, menu, uncovered } from "./layers.js";
import { rollbackDialog, meaning } from "./rollback.js";
import { changesDialog } from "./changes.js";
import { learn, label, titled } from "./names.js";
import { branches, forkDialog } from "./forks.js";

const PAGE = 200; // rows at a time
const SEARCHED = 1000; // checkpoints that a search asks for at a time
const kinds = {
  manual: ["●", "Manual", "made by a person or a tool"],
  agent: ["◆", "Turns", "made by itself before a turn's first write"],
  deploy: ["▲", "Deploys", "made by a deployment"],
  "pre-rollback": ["↺", "Safety", "the state just before a rollback: the way forward again"],
};
const words = { manual: "manual", agent: "before a turn", deploy: "deploy", "pre-rollback": "safety" };

// timeline draws into body. If the view is drawn anew, body and kept are those of before: what is searched for, how much is shown, and the
// rows stay.
export async function timeline(app, body, signal, reload, kept) {
  // list are the newest checkpoints as far as they are loaded, of which those that have all words are found; count of these are wanted,
  // and drawn are there. last is the id of the last row there was when older ones were asked for: the focus goes to the row after it.
  const view = kept.timeline ??= { filter: "", words: [], list: [], end: false, total: 0, count: PAGE, drawn: 0, seeking: 0, loading: 0, last: "",
    turns: new Map(), forks: [], forward: null, rows: new Map(), parts: {} };
  Object.assign(view, { app, body, signal, reload });
  await load(view);
  // Several events come together: one look is enough for them.
  let soon;
  const look = () => signal.aborted || renew(view);
  api.follow(app.slug, (kind, data) => {
    if (kind === "stage") return live(data.status === "running" ? `Rollback under way: ${meaning[data.stage]}…` : null);
    if (kind !== "open") live("");
    clearTimeout(soon);
    soon = setTimeout(look, 300);
  }, signal);
}

// notice says above the timeline what is being done to the app.
export const notice = (text) => text && h("p", { class: "notice live" }, h("span", { class: "spinner", "aria-hidden": "true" }), text);

// live shows a notice, or takes it away if the text is empty; null leaves what is there.
function live(text) {
  const el = document.getElementById("live");
  if (el && text !== null) fill(el, notice(text));
}

// refresh shows the newest state, also when the view was drawn anew meanwhile.
const refresh = (view) => (view.signal.aborted ? view.reload() : renew(view));

// load gets the newest state and draws it. What is open above the view stays as it is until it closes.
async function load(view) {
  const { app, signal } = view;
  const mine = ++view.loading;
  await uncovered();
  const wanted = () => Math.max(view.count, view.words.length ? view.list.length : 0); // what was asked for stays
  const limit = wanted();
  const over = () => signal.aborted || mine !== view.loading; // a later one draws
  const answers = await Promise.all([
    api.checkpoints(app.slug, { limit, trigger: view.filter }), api.turns(app.slug, 500), api.forks(app.slug),
    api.checkpoints(app.slug, { trigger: "pre-rollback", limit: 1 })]).catch((err) => { if (!over()) throw err; });
  await uncovered();
  if (over()) return;
  const [page, turns, forks, safety] = answers;
  if (limit < wanted()) return load(view); // older ones were asked for meanwhile
  view.seeking++; // what is looked for goes on with the new list
  view.list = page.checkpoints ?? [];
  learn(view.list);
  view.end = view.list.length < limit;
  view.total = page.storage_usage?.checkpoint_count ?? 0;
  view.forks = forks;
  view.turns = new Map(turns.map((t) => [t.checkpoint_id, t]));
  view.forward = safety.checkpoints?.[0]; // the last rollback's safety checkpoint is the way forward
  draw(view);
  await seek(view);
}

// renew loads the view again. If that fails, the rows that are shown stay: the link says so when the daemon is gone.
const renew = (view) => load(view).catch((err) => {
  if (view.list.length) return;
  fill(view.parts.list); // its rows are of the kind that was chosen before
  stopped(view, err, () => renew(view));
});

// stopped shows below the rows why no more of them came, and a button that asks for them again.
function stopped(view, err, again) {
  const { end } = view.parts;
  const focused = document.activeElement === document.body || end.contains(document.activeElement); // as the focus of who asked for older rows is
  const button = h("button", { type: "button", "data-key": "older", onclick: again }, "Try again");
  fill(end, trouble(err), h("p", { class: "older" }, button));
  if (focused) button.focus({ preventScroll: true });
}

// draw shows the view anew. A row that would be the same stays the same element.
function draw(view) {
  const focused = document.activeElement?.dataset?.key;
  const place = rows(view).indexOf(document.activeElement?.closest("li.cp"));
  const first = !view.total && !view.filter && !view.words.length;
  if (!view.parts.list) {
    const part = () => h("div", {});
    view.parts = { tools: tools(view), now: part(), apart: part(), list: part(), end: part() };
    fill(view.body, Object.values(view.parts));
  }
  const { parts } = view;
  parts.tools.hidden = first;
  fill(parts.now, h("ol", { class: "line", "aria-label": "Now" }, first ? beginning(view) : now(view)));
  fill(parts.apart, elsewhere(view));
  fill(parts.list);
  view.drawn = 0;
  append(view);
  finish(view, false);
  if (!focused) return;
  const same = view.body.querySelector(`[data-key="${CSS.escape(focused)}"]`);
  const beside = rows(view).slice(0, place + 1).at(-1); // of a row that was deleted
  (same ?? beside?.querySelector(".main-action"))?.focus({ preventScroll: true });
}

// rows are the rows of checkpoints that are shown.
const rows = (view) => [...(view.parts.list?.querySelectorAll("li.cp") ?? [])];

// found gives the places in the list of what has all words in its title, notes or id.
function found(view) {
  const places = [...view.list.keys()];
  if (!view.words.length) return places;
  return places.filter((i) => {
    const cp = view.list[i];
    const text = [label(cp), cp.title, cp.notes, cp.checkpoint_id].join(" ").toLowerCase();
    return view.words.every((w) => text.includes(w));
  });
}

// append adds the rows that are wanted and not there yet, below those that are.
function append(view) {
  const { list } = view.parts;
  for (const i of found(view).slice(view.drawn, view.count)) {
    const title = day(view.list[i].created_at);
    if (list.lastChild?.getAttribute("aria-label") !== title) list.append(h("h2", { class: "day" }, title), h("ol", { class: "line", "aria-label": title }));
    list.lastChild.append(row(view, view.list[i], view.list[i - 1]));
    view.drawn++;
  }
}

// row gives the row of a checkpoint: the one that is there, if nothing about it has changed.
function row(view, cp, newer) {
  const about = JSON.stringify([cp, newer?.checkpoint_id, view.turns.get(cp.checkpoint_id), view.forks.filter((f) => f.fork.origin === cp.checkpoint_id)]);
  const known = view.rows.get(cp.checkpoint_id);
  if (known?.about === about) return known.row;
  const made = entry(view, cp, newer);
  view.rows.set(cp.checkpoint_id, { about, row: made });
  return made;
}

// seek loads older checkpoints until as many are found as are wanted, or all are looked through.
async function seek(view) {
  const mine = ++view.seeking;
  while (!view.end && found(view).length < view.count) {
    finish(view, true);
    const limit = view.words.length ? SEARCHED : PAGE;
    const page = await api.checkpoints(view.app.slug, { limit, trigger: view.filter, before: view.list.at(-1)?.checkpoint_id }).catch((failure) => ({ failure }));
    if (view.signal.aborted || mine !== view.seeking) return;
    if (page.failure) {
      finish(view, false);
      return stopped(view, page.failure, () => seek(view));
    }
    const more = page.checkpoints ?? [];
    learn(more);
    view.list.push(...more);
    view.end = more.length < limit;
    append(view);
  }
  finish(view, false);
  goOn(view);
}

// goOn moves the focus to the first of the older rows that were asked for, if it is there. Who has gone elsewhere meanwhile stays there.
function goOn(view) {
  const all = rows(view);
  const place = all.findIndex((row) => row.id === view.last);
  const next = all[place + 1];
  if (place < 0 || !next) return;
  view.last = "";
  const at = document.activeElement;
  if (at === document.body || view.parts.end.contains(at)) next.querySelector(".main-action").focus({ preventScroll: true });
}

// finish shows below the rows whether there are more, and beside the search what it found. running is a search that goes on.
function finish(view, running) {
  const n = found(view).length;
  const of = view.filter ? "" : ` of ${view.total.toLocaleString()}`;
  const among = view.end ? ` among ${count(view.list.length, "checkpoint")}.` : `; ${view.list.length.toLocaleString()}${of} searched${running ? "…" : "."}`;
  view.parts.tools.querySelector("[role=status]").textContent = view.words.length ? `${n ? n.toLocaleString() : "None"} found${among}` : "";
  const none = !view.list.length && view.filter;
  const focused = view.parts.end.contains(document.activeElement);
  fill(view.parts.end,
    none && h("div", { class: "blank" }, h("p", { class: "quiet" }, `No checkpoint here was ${kinds[view.filter]?.[2].replace("the state", "made as the state") ?? "of this kind"}.`),
      h("p", {}, h("button", { type: "button", onclick: () => choose(view, "") }, "Show all"))),
    !running && (n > view.drawn || !view.end) && h("p", { class: "older" }, h("button", { type: "button", "data-key": "older", onclick: (e) => older(view, e.currentTarget) }, "Show older")));
  if (focused) view.parts.end.querySelector("button")?.focus({ preventScroll: true });
}

// beginning is what an app without a checkpoint shows.
const beginning = (view) => h("li", { class: "now first" }, h("span", { class: "node", "aria-hidden": "true" }, "◉"),
  h("div", { class: "entry blank" },
    h("h2", {}, "No checkpoint yet"),
    h("p", { class: "quiet" }, "A checkpoint is a state that you can come back to: files, databases and disks together. The first costs the most; the ones after it only what changed."),
    h("p", {}, h("button", { type: "button", class: "primary", "data-do": "create", "data-key": "create", onclick: () => createDialog(view) }, "Create checkpoint"))));

// now is the row of the present state.
function now(view) {
  const { app, list, forward } = view;
  const changed = () => changesDialog(app, list[0], "now");
  return h("li", { class: "now" },
    h("span", { class: "node", "aria-hidden": "true" }, "◉"),
    h("div", { class: "entry" }, h("div", { class: "head" },
      h("div", { class: "text" },
        h("p", { class: "title" }, h("strong", {}, "Now")),
        list.length > 0 && h("p", { class: "small" }, h("button", { type: "button", class: "link", "data-key": "now", "data-do": "now", onclick: changed }, "What changed since the newest checkpoint"))),
      h("div", { class: "acts" },
        h("button", { type: "button", class: "primary main-action", "data-do": "create", "data-key": "create", onclick: () => createDialog(view) }, "Create checkpoint"),
        menu({ label: "More of now", key: "more", items: () => [
          { text: "Fork…", act: () => forkDialog(view) },
          forward && { text: "Roll forward…", act: () => rollbackDialog(app, forward, view.reload, "Roll forward") },
          { text: "Prune…", act: () => pruneDialog(view) },
        ] })))));
}

// elsewhere shows the forks of checkpoints that are not in the list: older ones, and deleted ones.
function elsewhere(view) {
  const rest = view.forks.filter((f) => !view.list.some((cp) => cp.checkpoint_id === f.fork.origin));
  return rest.length > 0 && h("div", { class: "apart" }, h("p", { class: "quiet small" }, "Forks of checkpoints that are not shown"), branches(view, rest));
}

function choose(view, value) {
  view.filter = value;
  view.list = [];
  view.end = false;
  view.count = PAGE;
  view.last = "";
  view.seeking++; // what is still under way is of the kind that was shown
  view.parts.tools.querySelector(`input[value="${value}"]`).checked = true;
  return renew(view);
}

// tools are the choice of kinds, and the search.
function tools(view) {
  const option = (value, label) => h("label", {},
    h("input", { type: "radio", name: "filter", value, "data-key": `filter-${value}`, checked: view.filter === value, onchange: () => choose(view, value) }), h("span", {}, label));
  let soon;
  const search = (e) => {
    const words = e.currentTarget.value.toLowerCase().split(/\s+/).filter(Boolean);
    clearTimeout(soon);
    soon = setTimeout(() => find(view, words), 150); // who types is not done yet
  };
  return h("div", { class: "tools" },
    h("fieldset", { class: "filters" }, h("legend", { class: "hidden" }, "Show"),
      option("", "All"), Object.entries(kinds).map(([k, [, label]]) => option(k, label))),
    h("input", { type: "search", id: "search", "data-key": "search", placeholder: "Find…", "aria-label": "Find by words of the title or notes, or by the id", autocomplete: "off", spellcheck: "false", oninput: search }),
    h("p", { class: "quiet small", role: "status" }));
}

function find(view, words) {
  view.words = words;
  view.count = PAGE;
  view.last = "";
  draw(view);
  return seek(view);
}

function older(view, button) {
  button.disabled = true;
  view.last = view.parts.list.querySelector(":scope > ol:last-child > li:last-child")?.id ?? "";
  view.count += PAGE;
  append(view);
  return seek(view);
}

// entry shows one checkpoint. newer is the one that came after it, if any.
function entry(view, cp, newer) {
  const [sign, , meant] = kinds[cp.trigger] ?? ["●", "", ""];
  const turn = view.turns.get(cp.checkpoint_id);
  const changes = () => changesDialog(view.app, cp, newer?.checkpoint_id ?? "now");
  const row = h("li", { class: `cp ${cp.trigger}${cp.pinned ? " kept" : ""}`, id: cp.checkpoint_id, onchanges: changes },
    h("span", { class: "node", "aria-hidden": "true" }, sign),
    h("article", { class: "entry" },
      h("div", { class: "head" },
        h("div", { class: "text" },
          h("p", { class: "title" }, h("strong", {}, title(cp, turn)), marks(cp)),
          h("p", { class: "quiet small" }, time(cp.created_at), " · ", h("span", { title: meant }, words[cp.trigger] ?? cp.trigger),
            turn && [label(cp) ? [" · ", name(author(turn), "")] : "", turnChanges(turn)]),
          turn && databases(turn)),
        h("div", { class: "acts" },
          h("button", { type: "button", class: "main-action", "data-key": `back-${cp.checkpoint_id}`, "aria-label": `Roll back to ${label(cp) || cp.checkpoint_id}`, onclick: () => rollbackDialog(view.app, cp, view.reload) }, "Roll back…"),
          menu({ label: `More of ${label(cp) || cp.checkpoint_id}`, key: `more-${cp.checkpoint_id}`, about: () => facts(view.app, cp, turn), items: () => [
            { text: "What changed", act: changes },
            { text: "Fork…", act: () => forkDialog(view, cp) },
            { text: cp.pinned ? "Unpin" : "Pin", act: () => pin(view, cp, row) },
            { text: "Verify", act: () => verify(view, cp, row) },
            { text: "Delete…", danger: true, act: () => deleteDialog(view, cp) },
          ] }))),
      (cp.warnings ?? []).map((w) => h("p", { class: "remark small" }, shown(w))),
      cp.damaged && h("p", { class: "notice bad small" }, shown(cp.damaged)),
      branches(view, view.forks.filter((f) => f.fork.origin === cp.checkpoint_id))));
  return row;
}

// title is what a checkpoint is called: by its notes, or by the turn that came after it.
function title(cp, turn) {
  if (label(cp)) return titled(cp);
  if (turn) return name(turn.inferred ? "Writes after a quiet time" : `A turn of ${author(turn)}`, "");
  return cp.trigger === "agent" ? "Before a turn" : "Checkpoint";
}

const author = (turn) => (turn.inferred ? "nobody announced it" : turn.agent || "an agent");

// marks say what sets a checkpoint apart.
const marks = (cp) => [
  cp.pinned && h("span", { class: "badge pinned" }, "pinned"),
  cp.healthy === false && h("span", { class: "badge bad" }, "was not well"),
  cp.called_off && h("span", { class: "badge" }, "called off"),
];

// turnChanges says which files a turn changed. Git's own files are one item, as in diffs.
function turnChanges(t) {
  const { created, modified, deleted, paths } = t.changes;
  const total = created + modified + deleted;
  if (!total) return "";
  const told = (paths ?? []).slice(0, 2).map((p) => p === ".git" ? "git's own files" : name(p));
  return [" · ", created > 0 && h("span", { class: "plus" }, `+${created} `), modified > 0 && h("span", { class: "tilde" }, `~${modified} `), deleted > 0 && h("span", { class: "minus" }, `−${deleted} `),
    h("span", { class: "hidden" }, `(${created} created, ${modified} modified, ${deleted} deleted) `),
    told.map((p, i) => [i ? ", " : "", p]), total > told.length && told.length > 0 && ` and ${total - told.length} more`];
}

// databases says what a turn changed in databases, a line each.
function databases(t) {
  const most = 2;
  return (t.changes.databases ?? []).map((db) => {
    const told = (db.changes ?? []).slice(0, most);
    return h("p", { class: "quiet small" }, "database ", name(db.database), ": ",
      told.length ? told.map((c, i) => [i ? ", " : "", name(c.path), " ", shown(c.summary)]) : "changed",
      told.length > 0 && db.total > told.length && `, ${db.total - told.length} more`);
  });
}

// runs tells whether an app is ever started: it has something that runs.
const runs = (app) => Boolean(app.unit || app.run?.length || app.engine || app.containers?.length || app.domain);

// facts are what one asks for now and then.
function facts(app, cp, turn) {
  const parts = [bytes(cp.size_bytes) + " of its own", cp.ref && ["git ", h("code", {}, cp.ref.slice(0, 10))],
    (cp.db_snapshots ?? []).length > 0 && count(cp.db_snapshots.length, "database"), !cp.quiesced && runs(app) && "taken while the app ran",
    turn?.conversation_id && ["conversation ", name(turn.conversation_id, "name")], turn?.message_id && ["message ", name(turn.message_id, "name")]].filter(Boolean);
  return [h("p", {}, h("code", {}, cp.checkpoint_id)), parts.map((p) => h("p", {}, p))];
}

// act runs what a row's menu asks for, and shows what went wrong in the row, or in a notice if the row is no longer shown.
async function act(what, cp, row, work) {
  row.querySelector(".entry > .notice.trouble")?.remove();
  row.setAttribute("aria-busy", "true");
  try {
    await work();
  } catch (err) {
    if (!row.isConnected) return noticeFailure(`${what} ${label(cp) || cp.checkpoint_id}`, err);
    const box = trouble(err);
    box.classList.add("trouble");
    row.querySelector(".head").after(box);
  } finally {
    row.removeAttribute("aria-busy");
  }
}

const pin = (view, cp, row) => act(cp.pinned ? "Unpin" : "Pin", cp, row, async () => {
  await api.pin(view.app.slug, cp.checkpoint_id, !cp.pinned);
  say(cp.pinned ? "No longer pinned." : "Pinned: nothing deletes it.");
  await refresh(view);
});

const verify = (view, cp, row) => act("Verify", cp, row, async () => {
  const res = await api.verify(view.app.slug, cp.checkpoint_id);
  if (res.ok) return say(`${label(cp) ? `“${label(cp)}”` : cp.checkpoint_id} is whole: all that is stored of it was read and checked.`);
  throw { message: "What is stored of it is damaged.", hint: (res.problems ?? []).map((p) => `${p.layer}: ${p.message}`).join("; ") };
});

function createDialog(view) {
  dialog("Create a checkpoint", (body, close, box) => {
    const notes = h("input", { type: "text", id: "notes", maxlength: 1000, autocomplete: "off", autofocus: true });
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
        failed(box, out, go, err);
      }
    } },
    h("label", { for: "notes" }, "Notes"), notes,
    h("p", {}, h("label", {}, pinned, " Pin it: keep it until it is unpinned")),
    h("p", {}, h("label", {}, live, " Don't stop the app for it")),
    out, h("p", { class: "row end" }, h("button", { type: "button", onclick: close }, "Cancel"), go)));
  });
}

function deleteDialog(view, cp) {
  dialog("Delete a checkpoint", (body, close, box) => {
    const out = h("div", {});
    const go = h("button", { type: "button", class: "danger", onclick: async () => {
      go.disabled = true;
      try {
        await api.remove(view.app.slug, cp.checkpoint_id);
        close();
        say("Deleted.");
        view.reload();
      } catch (err) {
        failed(box, out, go, err);
      }
    } }, "Delete for good");
    body.append(h("p", {}, "Delete ", titled(cp), "?"),
      h("p", {}, `That frees ${bytes(cp.size_bytes)}. It can't be taken back.`),
      out, h("p", { class: "row end" }, h("button", { type: "button", onclick: close }, "Keep it"), go));
  });
}

function pruneDialog(view) {
  const r = view.app.retention;
  dialog("Prune", (body, close, box) => {
    const out = h("div", { role: "status" }, h("p", { class: "quiet" }, "Looking what would go…"));
    const go = h("button", { type: "button", class: "danger", disabled: true }, "Prune");
    body.append(h("p", {}, `Kept are pinned ones, the newest ${r.keep_last}, one a day for ${count(r.daily_days, "day")}, the newest ${r.keep_turns} of turns, and the newest ${r.keep_safety} from before rollbacks.`),
      out, h("p", { class: "row end" }, h("button", { type: "button", onclick: close }, "Cancel"), go));
    api.prune(view.app.slug, true).then((res) => {
      const n = res.deleted?.length ?? 0;
      fill(out, h("p", {}, n ? `${count(n, "checkpoint")} would go, ${res.kept} would stay.` : `Nothing would go: all ${res.kept} stay.`));
      go.disabled = !n;
    }, (err) => fill(out, trouble(err)));
    go.addEventListener("click", () => {
      go.disabled = true;
      api.prune(view.app.slug, false).then((res) => { close(); say(`${count(res.deleted?.length ?? 0, "checkpoint")} pruned.`); view.reload(); }, (err) => failed(box, out, go, err));
    });
  });
}
