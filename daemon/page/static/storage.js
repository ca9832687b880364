// What the checkpoints occupy, as a picture and as a table.

import { api } from "./api.js";
import { h, svg, fill, bytes, count, moment } from "./dom.js";
import { learn, titled } from "./names.js";

const kinds = [["manual", "manual"], ["agent", "turns"], ["deploy", "deploys"], ["pre-rollback", "safety"]];

export async function storage(app, body, signal) {
  const { checkpoints, storage_usage: use } = await api.checkpoints(app.slug);
  if (signal.aborted) return;
  const list = checkpoints ?? [];
  learn(list);
  if (!list.length) {
    fill(body, h("div", { class: "entry blank first" }, h("div", { class: "blank" }, h("h2", {}, "Nothing is stored yet"), h("p", { class: "quiet" }, "The first checkpoint occupies about what the app does; the ones after it only what changed."),
      h("p", {}, h("button", { type: "button", class: "primary", onclick: () => { location.hash = `#/app/${encodeURIComponent(app.slug)}/timeline`; } }, "To the timeline")))));
    return;
  }
  const own = kinds.map(([k, label]) => [k, label, sum(list.filter((c) => c.trigger === k))]);
  const shared = Math.max(0, use.total_bytes - sum(list));
  const parts = [...own, ["shared", "shared by several", shared]].filter(([, , n]) => n > 0);
  const limit = app.retention.max_bytes;
  const scale = Math.max(limit, use.total_bytes, 1);
  fill(body,
    h("h2", {}, bytes(use.total_bytes), h("span", { class: "quiet" }, limit ? ` of ${bytes(limit)}` : ", no limit set")),
    h("div", { class: "bar", role: "img", "aria-label": `${bytes(use.total_bytes)} used${limit ? ` of ${bytes(limit)}` : ""}` }, bar(parts, limit ? scale : use.total_bytes)),
    limit && use.total_bytes < limit / 20 ? [h("p", { class: "quiet small" }, "The same, without the free part:"), h("div", { class: "bar", "aria-hidden": "true" }, bar(parts, use.total_bytes))] : null,
    h("ul", { class: "legend" }, parts.map(([k, label, n]) => h("li", {}, h("span", { class: `swatch ${k}`, "aria-hidden": "true" }), `${label} ${bytes(n)}`))),
    h("p", {}, `${count(use.checkpoint_count, "checkpoint")}, ${use.pinned_count} pinned. Kept are the newest ${use.keep_last}, one a day for ${count(use.daily_days, "day")}, the newest ${app.retention.keep_turns} of turns, and the newest ${app.retention.keep_safety} from before rollbacks.`),
    h("h2", {}, "What each would free"), chart([...list].reverse()),
    asTable(list));
}

// asTable is filled when it is opened: it has a row a checkpoint.
function asTable(list) {
  const box = h("details", {}, h("summary", {}, "As a table"));
  box.addEventListener("toggle", () => box.open && box.append(h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Checkpoints by size" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Checkpoint", "Made", "Kind", "Frees"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, [...list].sort((a, b) => b.size_bytes - a.size_bytes).map((c) => h("tr", {}, h("th", { scope: "row" }, titled(c)),
        h("td", {}, moment(c.created_at)), h("td", {}, c.trigger + (c.pinned ? ", pinned" : "")), h("td", { class: "num" }, bytes(c.size_bytes)))))))), { once: true });
  return box;
}

const sum = (list) => list.reduce((n, c) => n + c.size_bytes, 0);

function bar(parts, scale) {
  let x = 0;
  return svg("svg", { viewBox: "0 0 1000 28", preserveAspectRatio: "none" }, ...parts.map(([k, , n]) => {
    const width = Math.max(2, (n / Math.max(scale, 1)) * 1000);
    const r = svg("rect", { class: k, x, y: 0, width, height: 28 });
    x += width;
    return r;
  }));
}

const COLUMNS = 120; // at most: more would be too thin to be told apart

// chart draws a column a checkpoint, oldest first, or a column for several neighbours if there are many. Columns go by the square root
// of the size: beside one large first capture the small ones stay visible.
function chart(list) {
  if (!list.length) return h("p", { class: "quiet" }, "None yet.");
  const each = Math.ceil(list.length / COLUMNS);
  const groups = [];
  for (let i = 0; i < list.length; i += each) groups.push(list.slice(i, i + each));
  const sizes = groups.map(sum);
  const top = Math.sqrt(Math.max(...sizes, 1));
  const step = 1000 / Math.max(groups.length, 12);
  const when = (c) => new Date(c.created_at).toLocaleString();
  return h("figure", {}, svg("svg", { class: "chart", viewBox: "0 0 1000 160", preserveAspectRatio: "none", role: "img",
    "aria-label": each > 1 ? `Size of each ${each} neighbouring checkpoints, oldest first` : "Size of each checkpoint, oldest first" },
  ...groups.map((group, i) => {
    const height = Math.max(4, (Math.sqrt(sizes[i]) / top) * 150);
    const [first, last] = [group[0], group.at(-1)];
    return svg("rect", { class: most(group), x: i * step + step * 0.1, y: 160 - height, width: step * 0.8, height },
      svg("title", {}, document.createTextNode(group.length > 1 ? `${count(group.length, "checkpoint")}, ${when(first)} to ${when(last)}: ${bytes(sizes[i])}` : `${when(first)}: ${bytes(sizes[i])}`)));
  })),
  h("figcaption", { class: "quiet small" }, each > 1 ? `Each column is ${each} neighbouring checkpoints, in the colour of the kind that has the most of it. ` : "",
    "Oldest on the left. The height goes by the square root of the size."));
}

// most is the kind of checkpoint that has the most of a group's size.
function most(group) {
  const [best] = kinds.map(([k]) => [k, sum(group.filter((c) => c.trigger === k)), group.filter((c) => c.trigger === k).length])
    .sort((a, b) => b[1] - a[1] || b[2] - a[2]);
  return best[0];
}
