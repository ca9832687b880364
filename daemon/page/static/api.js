// The daemon's API, as the CLI uses it too.

export class Failure extends Error {
  constructor(status, body) {
    const e = body?.error ?? {};
    super(e.message || `the daemon answered ${status}`);
    this.kind = e.kind || "internal";
    this.hint = e.hint || "";
    this.status = status;
  }
}

// The session's token, which shows a change to come from this page.
let session;
async function csrf() {
  session ??= ask("GET", "/api/session").catch((err) => { session = undefined; throw err; });
  return (await session).csrf;
}

async function send(method, path, body, accept = "application/json") {
  const headers = { Accept: accept };
  if (method !== "GET") headers["X-CSRF-Token"] = await csrf();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let resp;
  try {
    resp = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    window.dispatchEvent(new Event("api-unreachable"));
    throw new Failure(0, { error: { kind: "unavailable", message: "the daemon does not answer", hint: "see `mulligan status`" } });
  }
  return resp;
}

async function ask(method, path, body) {
  const resp = await send(method, path, body);
  if (resp.status === 204) return null;
  const data = await resp.json().catch(() => null);
  if (!resp.ok) throw new Failure(resp.status, data);
  return data;
}

const app = (slug, ...below) => ["/api/apps", slug, ...below].map((s, i) => (i ? encodeURIComponent(s) : s)).join("/");

function query(values) {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(values)) {
    if (v === undefined || v === "" || v === false || v === 0) continue;
    for (const one of Array.isArray(v) ? v : [v]) q.append(k, one === true ? "1" : one);
  }
  const s = q.toString();
  return s ? "?" + s : "";
}

export const api = {
  session: () => ask("GET", "/api/session"),
  leave: () => ask("DELETE", "/api/session"),
  status: () => ask("GET", "/api/status"),
  apps: async () => (await ask("GET", "/api/apps")).apps ?? [],
  app: (slug) => ask("GET", app(slug)),
  checkpoint: (slug, id) => ask("GET", app(slug, "checkpoints", id)),
  checkpoints: (slug, q = {}) => ask("GET", app(slug, "checkpoints") + query(q)),
  turns: async (slug, limit) => (await ask("GET", app(slug, "turns") + query({ limit }))).turns ?? [],
  audit: (slug, q) => ask("GET", app(slug, "audit") + query(q)),
  create: (slug, body) => ask("POST", app(slug, "checkpoints"), body),
  pin: (slug, id, on) => ask("POST", app(slug, "checkpoints", id, on ? "pin" : "unpin")),
  remove: (slug, id) => ask("DELETE", app(slug, "checkpoints", id)),
  verify: (slug, id) => ask("POST", app(slug, "checkpoints", id, "verify")),
  prune: (slug, dry) => ask("POST", app(slug, "checkpoints", "prune") + query({ dry_run: dry })),
  diff: (slug, id, q) => ask("GET", app(slug, "checkpoints", id, "diff") + query(q)),
  forks: async (slug) => (await ask("GET", app(slug, "forks"))).forks ?? [],
  fork: (slug, body) => ask("POST", app(slug, "forks"), body),
  compareForks: (slug, body) => ask("POST", app(slug, "forks", "compare"), body),
  keep: (slug, fork, body) => ask("POST", app(slug, "forks", fork, "keep"), body),
  drop: (slug, fork) => ask("DELETE", app(slug, "forks", fork)),
  preview: (slug, id, body) => ask("POST", app(slug, "checkpoints", id, "rollback"), { ...body, dry_run: true }),

  // rollback calls onstage for each stage as it begins and ends, and gives the receipt.
  async rollback(slug, id, body, onstage) {
    const resp = await send("POST", app(slug, "checkpoints", id, "rollback"), body, "text/event-stream");
    if (!resp.headers.get("Content-Type")?.startsWith("text/event-stream")) {
      throw new Failure(resp.status, await resp.json().catch(() => null));
    }
    const silent = { error: { kind: "unavailable", message: "the daemon stopped telling of the rollback",
      hint: "it goes on without this page, and after a crash it is finished or taken back at the next start: the audit says which" } };
    try {
      for await (const ev of events(resp.body)) {
        if (ev.name === "stage") onstage(ev.data);
        else if (ev.name === "result") return ev.data;
        else if (ev.name === "error") throw new Failure(500, { error: ev.data });
      }
    } catch (err) {
      throw err instanceof Failure ? err : new Failure(0, silent);
    }
    throw new Failure(0, silent);
  },

  // follow calls on with each event of the app's feed until the signal ends it.
  follow(slug, on, signal) {
    const source = new EventSource(app(slug, "events"));
    for (const kind of ["checkpoint", "deleted", "rollback", "revert", "turn", "stage"]) {
      source.addEventListener(kind, (e) => on(kind, JSON.parse(e.data)));
    }
    signal.addEventListener("abort", () => source.close());
  },
};

// events reads server-sent events from a body.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", name = "message", data = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data.push(line.slice(6));
      else if (line === "") {
        if (data.length) yield { name, data: JSON.parse(data.join("\n")) };
        name = "message";
        data = [];
      }
    }
  }
}
