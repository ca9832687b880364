// What a checkpoint of the app holds, and what it leaves out.

import { h, fill, name, shown, bytes } from "./dom.js";

export async function cover(app, body) {
  const r = app.retention;
  const facts = [["Owner", app.owner], ["Unit", app.unit || (app.run ? app.run.join(" ") : "none")], ["Virtual machine", app.domain || "none"],
    ["Health check", app.health?.url || app.health?.command?.join(" ") || "none"], ["Checkpoint at each turn's first write", app.auto ? "yes" : "no"],
    ["Limit", r.max_bytes ? bytes(r.max_bytes) : "none"], ["Expire after", r.expire_after === "0" ? "never" : r.expire_after]];
  fill(body, h("h2", {}, "Protected"), h("ul", {}, (app.covers ?? []).map((c) => h("li", {}, shown(c)))),
    h("h2", {}, "Left out"), app.exclude?.length ? h("ul", {}, app.exclude.map((p) => h("li", {}, name(p)))) : h("p", { class: "quiet" }, "No path is excluded."),
    h("h2", {}, "How it is kept"),
    h("dl", { class: "facts" }, facts.map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, shown(v))))));
}
