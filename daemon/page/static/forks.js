// Forks, as branches of the timeline: each below the checkpoint that it began with.

import { api } from "./api.js";
import { h, fill, name, shown, count, say, trouble } from "./dom.js";
import { dialog, failed, menu } from "./layers.js";
import { titled } from "./names.js";
import { brief } from "./changes.js";
import { would, receipt, ended } from "./rollback.js";

// branches shows forks, or nothing if there are none.
export function branches(view, forks) {
  return forks.length > 0 && h("div", { class: "branches", role: "list", "aria-label": "Forks" }, forks.map((f) => branch(view, f)));
}

function branch(view, app) {
  const { fork } = app;
  const ports = fork.ports ?? [];
  return h("div", { class: "branch", role: "listitem", id: app.app_id },
    h("div", { class: "head" },
      h("div", { class: "text" },
        h("p", { class: "title" }, h("a", { href: `#/app/${encodeURIComponent(app.slug)}` }, "Fork ", name(fork.name, "")),
          h("span", { class: "badge" }, fork.making ? "in the making" : app.state === "none" ? "files" : shown(app.state))),
        h("p", { class: "quiet small" }, ports.map((p) => [h("a", { href: `http://${host(app, p)}/`, rel: "noreferrer", target: "_blank" }, shown(p.address)), " · "]), name(app.workspace))),
      h("div", { class: "acts" },
        h("button", { type: "button", class: "main-action", "data-key": `keep-${app.app_id}`, "aria-label": `Keep fork ${fork.name}`, onclick: () => keepDialog(view, app) }, "Keep…"),
        menu({ label: `More of fork ${fork.name}`, key: `more-${app.app_id}`, items: () => [
          { text: "What it changed", act: () => compareDialog(view, app) },
          { text: "Its timeline", href: `#/app/${encodeURIComponent(app.slug)}` },
          ...ports.map((p) => ({ text: `Open ${p.address}`, href: `http://${host(app, p)}/` })),
          { text: "Drop…", danger: true, act: () => dropDialog(view, app) },
        ] }))),
    (app.problems ?? []).map((p) => h("p", { class: "notice warn small" }, shown(p))));
}

// host is the address of a fork's port for a browser. Cookies ignore ports, so each fork has a name of its own, which browsers look up
// themselves.
function host(app, port) {
  return port.address.replace(/^127\.0\.0\.1:/, `${app.slug}.localhost:`);
}

// forkDialog makes a fork of a checkpoint, or of the present state.
export function forkDialog(view, cp) {
  dialog("Fork", (body, close, box) => {
    const called = h("input", { type: "text", id: "fork-name", maxlength: 32, autocomplete: "off", autofocus: true, pattern: "[a-z0-9][a-z0-9\\-]*" });
    const out = h("div", {});
    const go = h("button", { type: "submit", class: "primary" }, "Make a fork");
    body.append(h("form", { onsubmit: async (e) => {
      e.preventDefault();
      go.disabled = true;
      fill(out, h("p", { class: "quiet", role: "status" }, "Making it…"));
      try {
        const { forks } = await api.fork(view.app.slug, { checkpoint_id: cp?.checkpoint_id ?? "", name: called.value });
        close();
        say(`Fork ${forks[0].fork.name} is there.`);
        view.reload();
      } catch (err) {
        failed(box, out, go, err);
      }
    } },
    h("p", {}, "A second, running copy of ", h("strong", {}, name(view.app.slug, "")), " as it ", cp ? ["was at ", titled(cp)] : "is now",
      ", with a folder and data of its own. The app itself is not touched."),
    h("label", { for: "fork-name" }, "Name (a number if it is empty)"), called,
    out, h("p", { class: "row end" }, h("button", { type: "button", onclick: close }, "Cancel"), go)));
  });
}

function compareDialog(view, app) {
  dialog(`What fork ${app.fork.name} changed`, (body, close, box) => {
    box.classList.add("wide");
    fill(body, h("p", { class: "quiet", role: "status" }, "Comparing…"));
    api.compareForks(view.app.slug, { names: [app.fork.name] }).then(({ forks: [f] }) => {
      const total = f.created + f.modified + f.deleted;
      fill(body,
        h("p", { role: "status" }, total ? `${count(total, "change")} since its origin.` : "Nothing has changed since its origin.",
          f.healthy === null ? "" : h("span", { class: f.healthy ? "good" : "bad" }, f.healthy ? " It is healthy." : " Its health check fails.")),
        brief(f.changes, "What the fork changed"),
        f.changes.length < total && h("p", { class: "quiet small" }, `The first ${f.changes.length} of ${total}.`),
        [...(f.unknown ?? []), ...(f.unreadable ?? [])].map((l) => h("p", { class: "notice warn small" }, "Not known: ", shown(l))),
        h("p", { class: "row end" }, h("button", { type: "button", onclick: close }, "Close")));
    }, (err) => fill(body, trouble(err)));
  });
}

// keepDialog shows what the app would become before anything happens.
function keepDialog(view, app) {
  dialog(`Keep fork ${app.fork.name}`, (body, close, box) => {
    box.classList.add("wide");
    const out = h("div", { class: "preview" }, h("p", { class: "quiet", role: "status" }, "Looking what would change…"));
    const go = h("button", { type: "button", class: "primary", disabled: true }, "Keep");
    fill(body, h("p", {}, "Take ", h("strong", {}, name(view.app.slug, "")), " to the state of fork ", h("strong", {}, name(app.fork.name, "")),
      ", and drop the fork. The state that the app has now is kept as a safety checkpoint first: this can be taken back."),
    out, h("p", { class: "row end" }, h("button", { type: "button", onclick: close }, "Cancel"), go));
    api.keep(view.app.slug, app.fork.name, { dry_run: true }).then((res) => { fill(out, would(res, "How the app differs from the fork")); go.disabled = false; },
      (err) => fill(out, trouble(err)));
    go.addEventListener("click", async () => {
      go.disabled = true;
      fill(out, h("p", { class: "quiet", role: "status" }, "Keeping it…"));
      box.addEventListener("close", view.reload);
      try {
        const res = await api.keep(view.app.slug, app.fork.name, {});
        if (!box.open) return ended(`Keep fork ${app.fork.name}`, res);
        fill(body, receipt({ app: view.app, reload: view.reload, body, close, box }, res));
        box.querySelector("header button").focus();
      } catch (err) {
        failed(box, out, go, err);
      }
    });
  });
}

function dropDialog(view, app) {
  dialog(`Drop fork ${app.fork.name}`, (body, close, box) => {
    const out = h("div", {});
    const go = h("button", { type: "button", class: "danger", onclick: async () => {
      go.disabled = true;
      try {
        await api.drop(view.app.slug, app.fork.name);
        close();
        say("Dropped.");
        view.reload();
      } catch (err) {
        failed(box, out, go, err);
      }
    } }, "Drop for good");
    body.append(h("p", {}, "Remove fork ", h("strong", {}, name(app.fork.name, "")), ", its folder ", name(app.workspace), ", its data and its checkpoints? It can't be taken back."),
      out, h("p", { class: "row end" }, h("button", { type: "button", onclick: close }, "Leave it"), go));
  });
}
