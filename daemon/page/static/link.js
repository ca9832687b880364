// Whether the daemon answers. A page that shows the state of a daemon which is
// gone would be believed: it must say so within three seconds.

import { h, fill, say } from "./dom.js";

const EVERY = 1000;   // ms from an answer to the next question
const PATIENCE = 1500; // ms that an answer may take

// watch asks the daemon again and again. back is called when it answers again.
export function watch(back) {
  const banner = document.getElementById("lost");
  let lost = false, timer, asking;

  async function ask() {
    clearTimeout(timer);
    if (asking || document.hidden) return; // visibilitychange asks
    asking = true;
    // Any answer is one, and none needs to know who asks. A connection that was kept too long fails at once: a new one is tried.
    const question = () => fetch("/healthz", { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(PATIENCE) }).then(() => true, (err) => (err.name === "TimeoutError" ? false : null));
    const answered = await question() ?? await question() ?? false;
    asking = false;
    if (answered && lost) {
      lost = false;
      banner.hidePopover();
      document.documentElement.classList.remove("gone");
      say("The daemon answers again.");
      back();
    } else if (!answered) {
      lost = true;
      document.documentElement.classList.add("gone");
      const health = document.querySelector("#health span:last-child");
      if (health) health.textContent = "daemon gone"; // back draws it anew
      if (!banner.matches(":popover-open")) banner.showPopover(); // above dialogs
      fill(banner, h("p", {}, h("strong", {}, "The daemon does not answer.")),
        h("p", {}, "What it has begun, it finishes or takes back when it starts. This page goes on by itself when it answers; if it was started anew, ",
          h("code", {}, "mulligan ui"), " opens a new one."));
    }
    timer = setTimeout(ask, EVERY);
  }
  document.addEventListener("visibilitychange", ask);
  ask();
  return ask;
}
