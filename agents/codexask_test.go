package agents

import (
	"io"
	"strings"
	"testing"

	"mulligan/errs"
)

func TestAskCodex(t *testing.T) {
	const begun = `{"id":1,"result":{"userAgent":"codex"}}` + "\n" + `{"method":"news","params":{}}` + "\n"
	hook := func(event, more string) string {
		return `{"eventName":"` + event + `","command":"mulligan hook codex || true"` + more + `}`
	}
	answer := func(hooks ...string) string {
		return begun + `{"id":2,"result":{"data":[{"cwd":"/srv/shop","hooks":[` + strings.Join(hooks, ",") + `]}]}}` + "\n"
	}
	other := `{"eventName":"stop","command":"notify","trustStatus":"untrusted"}`
	for name, c := range map[string]struct{ out, problem string }{
		"trusted":   {answer(hook("stop", `,"enabled":true,"trustStatus":"trusted"`), other), ""},
		"no trust":  {answer(hook("stop", "")), ""},
		"untrusted": {answer(hook("stop", `,"trustStatus":"untrusted"`), hook("preToolUse", `,"trustStatus":"modified"`)), "until you trust them (preToolUse and stop)"},
		"off":       {answer(hook("stop", `,"enabled":false,"trustStatus":"trusted"`)), "switched mulligan's hooks off (stop)"},
		"none":      {answer(other), "lists none of mulligan's hooks"},
	} {
		hooks, err := codexHooks(io.Discard, strings.NewReader(c.out), "/srv/shop")
		problem, remedy := judgeCodex(hooks)
		if err != nil || !strings.Contains(problem, c.problem) || (problem == "") != (c.problem == "") || (problem == "") != (remedy == "") {
			t.Errorf("%s: %q, %q, %v", name, problem, remedy, err)
		}
	}
	for out, kind := range map[string]errs.Kind{
		begun: errs.Unavailable, "": errs.Unavailable, "junk\n": errs.Unavailable, `{"id":2,"error":{"code":-32601,"message":"unknown"}}` + "\n": errs.Unsupported,
	} {
		if _, err := codexHooks(io.Discard, strings.NewReader(out), "/srv/shop"); errs.KindOf(err) != kind {
			t.Errorf("%q: %v, and should be %s", out, err, kind)
		}
	}
}
