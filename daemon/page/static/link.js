// Whether the daemon answers. A page that shows the state of a daemon which is
// gone would be believed: it must say so within three seconds.

import { resume } from "./api.js";
import { h, fill, say } from "./dom.js";

const EVERY = 1000;   // ms from an answer to the next question
const PATIENCE = 1500; // ms that an answer may take

// ask gives the challenge of the daemon's process: "" if another program answers, null if nothing does, false if it takes too long.
// It needs no session, and tells nobody of one.
const ask = () => fetch("/resume", { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(PATIENCE) })
  .then(async (resp) => { const text = await resp.text(); return resp.ok && /^[\w-]{43}$/.test(text) ? text : ""; })
  .catch((err) => (err.name === "TimeoutError" ? false : null));

// watch asks the daemon again and again. back is called when it answers again, and when it was started anew.
export function watch(back) {
  const banner = document.getElementById("lost");
  let lost = false, timer, asking, known;

  async function look() {
    clearTimeout(timer);
    if (asking || document.hidden) return; // visibilitychange asks
    asking = true;
    // A connection that was kept too long fails at once: a new one is tried.
    const challenge = (await ask()) ?? (await ask());
    const anew = challenge && known && challenge !== known;
    if (anew) await resume(); // if that is not possible, back says so
    if (challenge) known = challenge;
    asking = false;
    if (!challenge) gone(challenge === "");
    else if (lost || anew) here();
    timer = setTimeout(look, EVERY);
  }

  function here() {
    if (lost) {
      banner.hidePopover();
      document.documentElement.classList.remove("gone");
      say("The daemon answers again.");
    }
    lost = false;
    back();
  }

  function gone(taken) {
    lost = true;
    document.documentElement.classList.add("gone");
    const health = document.querySelector("#health span:last-child");
    if (health) health.textContent = "daemon gone"; // back draws it anew
    if (!banner.matches(":popover-open")) banner.showPopover(); // above dialogs
    fill(banner, h("p", {}, h("strong", {}, taken ? "Another program has taken the page's port." : "The daemon does not answer.")),
      taken ? h("p", {}, h("code", {}, "mulligan ui"), " opens a new page.")
        : h("p", {}, "What it has begun, it finishes or takes back when it starts. This page goes on by itself when it answers; if another program takes its port first, ",
          h("code", {}, "mulligan ui"), " opens a new one."));
  }
  document.addEventListener("visibilitychange", look);
  look();
  return look;
}
