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

// The session: its token shows a change to come from this page. Its key stays in the memory of the page: it shows the next process of
// the daemon that the page is the one that the session was given to.
let session, key;
const own = () => (session ??= ask("GET", "/api/session").then((s) => { key = s.key; return s; }, (err) => { session = undefined; throw err; }));
const csrf = async () => (await own()).csrf;

// resume continues the session after a restart of the daemon, and tells whether there is one. The pages of a browser share the session's
// cookie, which becomes another: only one of them resumes.
export async function resume() {
  if (!key || !window.isSecureContext) return false;
  return navigator.locks.request("resume", async () => {
    try {
      const now = await fetch("/api/session", { cache: "no-store" });
      if (now.status !== 401) return now.ok;
      const challenge = await (await fetch("/resume", { cache: "no-store", credentials: "omit" })).text();
      const resp = await fetch("/resume", { method: "POST", headers: { "X-Resume-Proof": await mac(key, challenge) } });
      if (resp.status === 401) key = undefined; // the session is over
      return resp.ok;
    } catch {
      return false; // the daemon is gone again: the link says so
    }
  });
}

// mac is the HMAC-SHA-256 of a text, as unpadded base64url.
async function mac(secret, text) {
  const bytes = (s) => new TextEncoder().encode(s);
  const k = await crypto.subtle.importKey("raw", bytes(secret), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const sum = new Uint8Array(await crypto.subtle.sign("HMAC", k, bytes(text)));
  return btoa(String.fromCharCode(...sum)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

// send sends a request, and once more if the daemon was started anew since the last.
async function send(...request) {
  const resp = await sendOnce(...request);
  return resp.status === 401 && (await resume()) ? sendOnce(...request) : resp;
}

async function sendOnce(method, path, body, accept = "application/json") {
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
  if (!resp.ok && !data?.stages) throw new Failure(resp.status, data); // the receipt of a rollback that began and failed is an answer
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
  session: own,
  leave: () => ask("DELETE", "/api/session").then(() => { session = key = undefined; }),
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

  // follow calls on with each event of the app's feed until the signal ends it, and with "open" each time that the feed begins: what happened
  // before that, nobody told.
  follow(slug, on, signal) {
    const source = new EventSource(app(slug, "events"));
    source.addEventListener("open", () => on("open"));
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
