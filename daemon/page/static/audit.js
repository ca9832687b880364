// The audit: who did what, when, and how it went.

import { api } from "./api.js";
import { h, fill, name, shown, moment, trouble } from "./dom.js";
import { learn, mention } from "./names.js";

export async function audit(app, body, signal) {
  const [{ entries }, { checkpoints }] = await Promise.all([api.audit(app.slug, { limit: 200 }), api.checkpoints(app.slug)]);
  if (signal.aborted) return;
  learn(checkpoints ?? []);
  const out = h("div", {});
  const check = h("button", { type: "button", onclick: async () => {
    check.disabled = true;
    try {
      const c = (await api.audit(app.slug, { limit: 1, verify: true })).check;
      fill(out, h("p", { class: `notice ${c.ok ? "good" : "bad"}`, role: "status" }, c.ok
        ? ["The trail is whole: ", String(c.entries), " entries, each hash follows from the one before. The last is ", h("code", {}, shown(c.head)), "."]
        : shown(c.problem)));
    } catch (err) {
      fill(out, trouble(err));
    }
    check.disabled = false;
  } }, "Check the trail");
  fill(body, h("p", { class: "row" }, check), out,
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Audit trail" }, h("table", { class: "audit" },
      h("thead", {}, h("tr", {}, ["When", "What", "On", "Who", "Result", "Why"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, (entries ?? []).map((e) => h("tr", {}, h("td", {}, moment(e.at)), h("th", { scope: "row" }, shown(e.action)),
        h("td", {}, mention("", e.target)), h("td", {}, name(e.actor, "")),
        h("td", { class: e.result === "ok" ? "good" : "bad" }, shown(e.result)), h("td", {}, name(e.reason ?? "", "note"))))))),
    !entries?.length && h("p", { class: "quiet" }, "Nothing yet."));
}
