// Building blocks of the page. Everything becomes a text node or an attribute
// that holds no code: nothing here takes markup.

// h makes an element. A property that starts with "on" is a listener, `class`,
// `for`, aria and data names are attributes, and null or false leaves one out.
export function h(tag, props = {}, ...children) {
  const el = document.createElement(tag);
  assign(el, props);
  el.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return el;
}

// svg is h for SVG elements.
export function svg(tag, props = {}, ...children) {
  const el = document.createElementNS("http://www.w3.org/2000/svg", tag);
  assign(el, props);
  el.append(...children.filter(Boolean));
  return el;
}

function assign(el, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) el.addEventListener(name.slice(2), value);
    else el.setAttribute(name, value === true ? "" : String(value));
  }
}

// fill replaces what el holds.
export function fill(el, ...children) {
  el.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return el;
}

// shown makes visible what a hostile name hides: control characters, and those
// that turn the direction of text around or have no width.
export function shown(text, keep = "") {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => {
    if (keep.includes(c)) return c;
    if (c === "\n") return "⏎";
    if (c === "\t") return "⇥";
    return `\\u{${c.codePointAt(0).toString(16)}}`;
  });
}

// name shows a path or another text of an app, apart from the text around it.
export const name = (text, cls = "name") => h("bdi", { class: cls, dir: "ltr" }, shown(text));

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

export const count = (n, one, many = one + "s") => `${n.toLocaleString()} ${n === 1 ? one : many}`;

export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const calendar = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

// time shows a moment of a day; hovering tells all of it.
export function time(iso, format = clock) {
  const d = new Date(iso);
  return h("time", { datetime: iso, title: whole.format(d) }, format.format(d));
}

export const moment = (iso) => time(iso, whole);

// underWay says what is being done to an app, and since when; hovering tells who does it. text is the API's: "roll back by … since …".
export function underWay(text) {
  const [, what, since] = text.match(/^(.*?) by .* since (\S+)$/) ?? [];
  return h("span", { title: text }, shown(what ?? text), " under way", since ? [" since ", time(since)] : "");
}

// day names the day of a moment.
export function day(iso) {
  const d = new Date(iso), now = new Date();
  const midnight = (x) => new Date(x.getFullYear(), x.getMonth(), x.getDate());
  const ago = Math.round((midnight(now) - midnight(d)) / 86400000);
  return ago === 0 ? "Today" : ago === 1 ? "Yesterday" : calendar.format(d);
}

// say tells screen readers, and eyes for a moment, what happened.
let forget;
export function say(text) {
  const el = document.getElementById("said");
  fill(el, h("p", {}, text));
  clearTimeout(forget);
  forget = setTimeout(() => fill(el), 6000);
}

// notice tells of the end of something that the person no longer looks at, on every view. What failed stays until it is dismissed.
export function notice(text, failed, hint) {
  const one = h("div", { class: `notice ${failed ? "bad" : "good"}`, role: failed ? "alert" : "status" },
    h("div", {}, h("p", {}, h("strong", {}, shown(text))), hint ? h("p", {}, shown(hint)) : null),
    h("button", { type: "button", class: "icon", "aria-label": "Dismiss", onclick: () => one.remove() }, "✕"));
  document.getElementById("ended").append(one);
  if (!failed) setTimeout(() => one.remove(), 15000);
}

// noticeFailure tells why an operation failed that the person no longer looks at.
export const noticeFailure = (operation, err) => notice(`${operation}: ${err.message}`, true, err.hint);

// trouble shows an error of the API: what is wrong, and what to do.
export function trouble(err) {
  return h("div", { class: "notice bad", role: "alert" },
    h("p", {}, h("strong", {}, shown(err.message))),
    err.hint ? h("p", {}, shown(err.hint)) : null);
}
