// Package appkeys has the keys of an app's settings as `mulligan app set` takes them.
package appkeys

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mulligan/appfile"
	"mulligan/cmd/mulligan/values"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/nearest"
	"mulligan/tomlfile"
)

// setters has a function for each key. It sets the key's value in app and puts
// what the API needs into change. The API replaces some groups of fields as a whole.
var setters = map[string]func(app *ipc.App, change *ipc.AppChange, value string) error{
	"unit": textKey(func(app *ipc.App, change *ipc.AppChange) (*string, **string) { return &app.Unit, &change.Unit }),
	"run": func(app *ipc.App, change *ipc.AppChange, v string) error {
		words, err := values.Command(v)
		app.Run = append([]string{}, words...) // not nil, which the API takes for no change
		change.Run = &app.Run
		return err
	},
	"engine": textKey(func(app *ipc.App, change *ipc.AppChange) (*string, **string) { return &app.Engine, &change.Engine }),
	"volumes": func(app *ipc.App, change *ipc.AppChange, v string) error {
		app.Volumes = []ipc.Volume{}
		for _, name := range words(v) {
			app.Volumes = append(app.Volumes, ipc.Volume{Name: name})
		}
		change.Volumes = &app.Volumes
		return nil
	},
	"owner":    textKey(func(app *ipc.App, change *ipc.AppChange) (*string, **string) { return &app.Owner, &change.Owner }),
	"domain":   textKey(func(app *ipc.App, change *ipc.AppChange) (*string, **string) { return &app.Domain, &change.Domain }),
	"uri":      textKey(func(app *ipc.App, change *ipc.AppChange) (*string, **string) { return &app.URI, &change.URI }),
	"shutdown": textKey(func(app *ipc.App, change *ipc.AppChange) (*string, **string) { return &app.Shutdown, &change.Shutdown }),
	"auto": func(app *ipc.App, change *ipc.AppChange, v string) error {
		on, ok := values.YesNo(v)
		app.Auto, change.Auto = on, &app.Auto
		return accepts(ok, yesOrNo)
	},
	"follow": func(app *ipc.App, change *ipc.AppChange, v string) error {
		on, ok := values.YesNo(v)
		app.Follow, change.Follow = &on, &on
		return accepts(ok, yesOrNo)
	},
	"titles": func(app *ipc.App, change *ipc.AppChange, v string) error {
		keep, ok := values.YesNo(v)
		app.Titles, change.Titles = &keep, &keep
		return accepts(ok, yesOrNo)
	},
	"exclude": func(app *ipc.App, change *ipc.AppChange, v string) error {
		list, err := values.Patterns(v)
		app.Exclude = append([]string{}, list...)
		change.Exclude = &app.Exclude
		return err
	},
	"health.url": healthKey(func(h *ipc.Health, v string) error {
		h.URL, h.Command = v, nil
		return nil
	}),
	"health.command": healthKey(func(h *ipc.Health, v string) (err error) {
		h.URL = ""
		h.Command, err = values.Command(v)
		return err
	}),
	"health.timeout": healthKey(func(h *ipc.Health, v string) error {
		h.Timeout = v
		return nil
	}),
	"retention.keep_last":   count(retention, func(r *ipc.Retention) *int { return &r.KeepLast }),
	"retention.daily_days":  count(retention, func(r *ipc.Retention) *int { return &r.DailyDays }),
	"retention.keep_turns":  count(retention, func(r *ipc.Retention) *int { return &r.KeepTurns }),
	"retention.keep_safety": count(retention, func(r *ipc.Retention) *int { return &r.KeepSafety }),
	"retention.max_bytes": func(app *ipc.App, change *ipc.AppChange, v string) error {
		n, ok := tomlfile.ParseSize(v)
		app.Retention.MaxBytes = n
		change.Retention = &app.Retention
		return accepts(ok, "a number of bytes, or a size as in 500MiB or 20GiB")
	},
	"retention.expire_after": func(app *ipc.App, change *ipc.AppChange, v string) error {
		app.Retention.ExpireAfter = v
		change.Retention = &app.Retention
		return nil
	},
	"fork.dir": forkKey(func(f *ipc.Forking, v string) error {
		f.Dir = v
		return nil
	}),
	"fork.expose": forkKey(func(f *ipc.Forking, v string) error {
		f.Expose = nil
		for _, word := range words(v) {
			port, err := strconv.Atoi(word)
			if err != nil || port < 1 || port > 65535 {
				return accepts(false, "numbers of ports with commas between them, as in 8080,9090")
			}
			f.Expose = append(f.Expose, port)
		}
		return nil
	}),
	"fork.isolation": forkKey(func(f *ipc.Forking, v string) error {
		f.Isolation = v
		return nil
	}),
	"fork.ports": forkKey(func(f *ipc.Forking, v string) error {
		f.Ports = words(v)
		return nil
	}),
	"fork.dotenv": forkKey(func(f *ipc.Forking, v string) error {
		f.Dotenv = words(v)
		return nil
	}),
	"fork.compose": forkKey(func(f *ipc.Forking, v string) (err error) {
		f.Compose, err = values.Command(v)
		return err
	}),
	"fork.network": forkKey(func(f *ipc.Forking, v string) error {
		f.Network = new(v != "false")
		return accepts(v == "true" || v == "false", "true or false")
	}),
	"fork.expire_after": forkKey(func(f *ipc.Forking, v string) error {
		f.ExpireAfter = v
		return nil
	}),
	"remote.auto": func(app *ipc.App, change *ipc.AppChange, v string) error {
		app.Remoting.Auto = v
		change.Remoting = &app.Remoting
		return nil
	},
	"remote.keep_last":  count(remoting, func(r *ipc.Remoting) *int { return &r.KeepLast }),
	"remote.daily_days": count(remoting, func(r *ipc.Remoting) *int { return &r.DailyDays }),
	"database":          setDatabase,
	"database.env": func(app *ipc.App, change *ipc.AppChange, v string) error {
		name, variable, _ := strings.Cut(v, ":")
		at := slices.IndexFunc(app.Databases, func(d ipc.Database) bool { return d.Name == name })
		if at < 0 {
			return errs.New(errs.NotFound, "app set", "the app has no database %q", name).WithHint("write database.env=NAME:VARIABLE; `mulligan app show` lists the databases")
		}
		app.Databases[at].Env = variable
		change.Databases = &app.Databases
		return nil
	},
}

// ownQuotes lists the keys whose setters handle quotation marks themselves.
var ownQuotes = []string{"run", "exclude", "health.command"}

// elsewhere are the words that people and other tools have for a key.
var elsewhere = map[string][]string{
	"auto":                 {"autosave", "automatic", "autocheckpoint", "checkpoints"},
	"retention.keep_last":  {"retention.keep", "retention", "keep", "keep_last", "retention.last", "retention.count"},
	"retention.daily_days": {"retention.days", "retention.daily", "days", "daily"},
	"retention.max_bytes":  {"retention.max_size", "retention.size", "retention.bytes", "max_size", "quota"},
	"health.url":           {"health", "healthcheck", "health_check", "health.http", "health.check", "healthz"},
	"health.timeout":       {"timeout"},
	"health.command":       {"health.cmd", "health.exec"},
	"exclude":              {"ignore", "excludes", "gitignore", "skip"},
	"run":                  {"command", "cmd", "start", "exec"},
	"unit":                 {"service", "container", "compose"},
	"database":             {"databases", "db", "dbs"},
	"volumes":              {"volume"},
	"fork.ports":           {"ports", "port"},
	"fork.dir":             {"fork", "forks"},
	"remote.auto":          {"remote", "remotes", "push", "backup"},
	"titles":               {"title", "prompts"},
}

// fixed says of what no key changes how it can be had another way.
var fixed = map[string]string{
	"workspace": "an app's folder stays the same: `mulligan init` in another folder makes another app",
	"slug":      "an app's name stays the same: `mulligan init --slug NAME` makes another app",
}

// Meant returns the key that an unknown one was probably meant to be, or "".
func Meant(key string) string {
	for own, words := range elsewhere {
		if slices.Contains(words, strings.ReplaceAll(strings.ToLower(key), "-", "_")) {
			return own
		}
	}
	all := slices.Sorted(maps.Keys(setters))
	if near := nearest.Word(key, all); near != "" {
		return near
	}
	if at := slices.IndexFunc(all, func(own string) bool { return strings.HasSuffix(own, "."+strings.ToLower(key)) }); at >= 0 {
		return all[at]
	}
	return ""
}

const (
	op      = "app set"
	yesOrNo = "yes or no"
)

// refused is the error of a setter for a value that its key does not take.
type refused struct{ accepted string }

func (r refused) Error() string { return "give " + r.accepted }

// accepts returns an error that says which values a key takes, unless ok is true.
func accepts(ok bool, accepted string) error {
	if ok {
		return nil
	}
	return refused{accepted}
}

// Set applies one argument KEY=VALUE to app and change. No error refers to a help: it says what is accepted.
func Set(app *ipc.App, change *ipc.AppChange, pair string) error {
	key, value, found := strings.Cut(pair, "=")
	set := setters[key]
	switch {
	case !found:
		return errs.New(errs.Invalid, op, "%.64q is not KEY=VALUE", pair).WithHint("write it as in auto=yes")
	case set == nil:
		e := errs.New(errs.Invalid, op, "%.64q is no key of an app", key)
		known := map[string]string{"dir": "workspace", "folder": "workspace", "path": "workspace", "name": "slug"}
		if why := fixed[cmp.Or(known[strings.ToLower(key)], strings.ToLower(key))]; why != "" {
			return e.WithHint("%s", why)
		}
		if near := Meant(key); near != "" {
			return e.WithHint("did you mean %s?", near)
		}
		return e.WithHint("the keys are %s", strings.Join(slices.Sorted(maps.Keys(setters)), ", "))
	}
	if !slices.Contains(ownQuotes, key) {
		var err error
		if value, err = values.Text(key, value); err != nil {
			return err
		}
	}
	err := set(app, change, value)
	var no refused
	if errors.As(err, &no) {
		return errs.New(errs.Invalid, op, "%.64q is not a value for %s", value, key).WithHint("%s", no.Error())
	}
	return err
}

// words splits a list at its commas.
func words(v string) (list []string) {
	if v == "" {
		return nil
	}
	for word := range strings.SplitSeq(v, ",") {
		list = append(list, strings.TrimSpace(word))
	}
	return list
}

// textKey returns a setter that puts the value into a field of the app and one of the change.
func textKey(fields func(*ipc.App, *ipc.AppChange) (*string, **string)) func(*ipc.App, *ipc.AppChange, string) error {
	return func(app *ipc.App, change *ipc.AppChange, v string) error {
		set, changed := fields(app, change)
		*set, *changed = v, &v
		return nil
	}
}

// healthKey returns a setter that changes the health check with f.
func healthKey(f func(*ipc.Health, string) error) func(*ipc.App, *ipc.AppChange, string) error {
	return func(app *ipc.App, change *ipc.AppChange, v string) error {
		var h ipc.Health // a copy: a value that is wrong changes nothing
		if app.Health != nil {
			h = *app.Health
		}
		err := f(&h, v)
		if err == nil {
			app.Health, change.Health = &h, &h
		}
		return err
	}
}

// count returns a setter of a number of a part of the app, which is not negative.
func count[T any](part func(*ipc.App, *ipc.AppChange) *T, field func(*T) *int) func(*ipc.App, *ipc.AppChange, string) error {
	return func(app *ipc.App, change *ipc.AppChange, v string) error {
		n, err := strconv.Atoi(v)
		*field(part(app, change)) = n
		return accepts(err == nil && n >= 0, "a whole number, as in 20")
	}
}

// retention returns the app's retention, which is to be changed.
func retention(app *ipc.App, change *ipc.AppChange) *ipc.Retention {
	change.Retention = &app.Retention
	return change.Retention
}

// remoting returns what goes to the app's remotes, which is to be changed.
func remoting(app *ipc.App, change *ipc.AppChange) *ipc.Remoting {
	change.Remoting = &app.Remoting
	return change.Remoting
}

// forkKey returns a setter that changes with f how the app is forked.
func forkKey(f func(*ipc.Forking, string) error) func(*ipc.App, *ipc.AppChange, string) error {
	return func(app *ipc.App, change *ipc.AppChange, v string) error {
		change.Forking = &app.Forking
		return f(&app.Forking, v)
	}
}

// setDatabase adds the database of spec, or replaces the one of its name. An empty spec removes all databases.
func setDatabase(app *ipc.App, change *ipc.AppChange, spec string) error {
	change.Databases = &app.Databases
	if spec == "" {
		app.Databases = []ipc.Database{} // not nil, which the API takes for no change
		return nil
	}
	db, err := appfile.ParseDatabase(spec)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(app.Databases, func(d ipc.Database) bool { return d.Name == db.Name })
	if at < 0 {
		app.Databases = append(app.Databases, db)
	} else {
		db.Env = app.Databases[at].Env
		app.Databases[at] = db
	}
	return nil
}
