// What checkpoints are called: by their notes, else by their turn's title. Only a checkpoint that has neither is named by its id.

import { api } from "./api.js";
import { h, shown } from "./dom.js";

const ID = /\bcp-[0-9a-f]{12,}\b/;
const known = new Map(); // from ids to checkpoints

// learn keeps checkpoints, of which other texts have only the ids.
export function learn(checkpoints) {
  for (const cp of checkpoints) known.set(cp.checkpoint_id, cp);
}

// label is what a checkpoint is called, as text; "" if it has no name but its id. The notes of a safety checkpoint name another
// checkpoint by its id.
export function label(cp) {
  if (cp.trigger === "pre-rollback" && cp.notes) return cp.notes.replace(ID, (id) => called(known.get(id)) || id);
  return cp.notes || cp.title || (cp.deploy_id ? `Deploy ${cp.deploy_id}` : "");
}

// called is how a text that has the id of cp calls it; "" if it has no name but its id.
function called(cp) {
  if (!cp) return "";
  if (cp.trigger !== "pre-rollback") return label(cp) && `“${label(cp)}”`;
  const before = cp.notes && known.get(ID.exec(cp.notes)?.[0]); // one step is enough: who rolls back and forth makes long chains
  return before && before.trigger !== "pre-rollback" && label(before) ? `the state before the rollback to “${label(before)}”` : "";
}

// titled shows what a checkpoint is called, or its id.
export function titled(cp) {
  if (!label(cp)) return h("code", {}, cp.checkpoint_id);
  return h("bdi", { class: "note", dir: "ltr", title: cp.checkpoint_id }, h("span", {}, cp.trigger === "pre-rollback" ? replaced(cp.app_id, label(cp)) : shown(label(cp))));
}

// mention shows what the checkpoint with that id is called. If the page has not seen it, mention asks for it, unless app is "".
export function mention(app, id) {
  const el = h("bdi", { class: "mention", dir: "ltr", title: id }, h("code", {}, shown(id)));
  const show = () => { if (called(known.get(id))) el.replaceChildren(shown(called(known.get(id)))); };
  if (known.has(id)) show();
  else if (app) look(app, id).then(show, () => {}); // of a checkpoint that is gone, the id is all there is
  return el;
}

const asked = new Map(); // from ids to what was asked
let before = Promise.resolve(); // the questions so far: there is one at a time

function look(app, id) {
  if (!asked.has(id)) asked.set(id, before.then(() => api.checkpoint(app, id)).then((cp) => learn([cp])));
  before = asked.get(id).catch(() => {});
  return asked.get(id);
}

// replaced shows a text with the checkpoint that it names called by its name.
function replaced(app, text) {
  const at = ID.exec(text);
  return at ? [shown(text.slice(0, at.index)), mention(app, at[0]), shown(text.slice(at.index + at[0].length))] : shown(text);
}
