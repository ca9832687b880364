// Package appfile reads app files (apps.d/*.toml, and `mulligan app add --file`) and has the rules for every description of an
// app, from any source. Its errors are of kind errs.Invalid, or say why a file could not be read. They have one line and never
// contain a password.
package appfile

import (
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/tomlfile"
)

const op = "read app"

// file has the keys of the app file.
type file struct {
	Slug      string      `toml:"slug"`
	Owner     string      `toml:"owner"`
	Workspace string      `toml:"workspace"`
	Unit      string      `toml:"unit"`
	Run       []string    `toml:"run"`
	Engine    string      `toml:"engine"`
	Volumes   []string    `toml:"volumes"`
	Domain    string      `toml:"domain"`
	URI       string      `toml:"uri"`
	Shutdown  string      `toml:"shutdown"`
	Auto      bool        `toml:"auto"`
	Follow    *bool       `toml:"follow"`
	Titles    *bool       `toml:"titles"`
	Exclude   []string    `toml:"exclude"`
	Health    *health     `toml:"health"`
	Retention retention   `toml:"retention"`
	Fork      fork        `toml:"fork"`
	Remote    remote      `toml:"remote"`
	Databases []*database `toml:"database"`
}

type health struct {
	URL     string   `toml:"url"`
	Command []string `toml:"command"`
	Timeout string   `toml:"timeout"`
}

type retention struct {
	KeepLast    int           `toml:"keep_last"`
	DailyDays   int           `toml:"daily_days"`
	KeepTurns   int           `toml:"keep_turns"`
	KeepSafety  int           `toml:"keep_safety"`
	MaxBytes    tomlfile.Size `toml:"max_bytes"`
	ExpireAfter string        `toml:"expire_after"`
}

type fork struct {
	Dir         string   `toml:"dir"`
	Expose      []int    `toml:"expose"`
	ExpireAfter string   `toml:"expire_after"`
	Isolation   string   `toml:"isolation"`
	Ports       []string `toml:"ports"`
	Dotenv      []string `toml:"dotenv"`
	Compose     []string `toml:"compose"`
	Network     *bool    `toml:"network"`
}

type remote struct {
	Auto      string `toml:"auto"`
	KeepLast  int    `toml:"keep_last"`
	DailyDays int    `toml:"daily_days"`
}

type database struct {
	Name    string `toml:"name"`
	Driver  string `toml:"driver"`
	DSN     string `toml:"dsn"`
	Mode    string `toml:"mode"`
	DataDir string `toml:"data_dir"`
	Unit    string `toml:"unit"`
	Env     string `toml:"env"`
}

// Parse reads the content of an app file. Missing keys have their defaults. The error for an invalid key is of kind
// errs.Invalid and names the line.
func Parse(data []byte) (ipc.App, error) { return parse("app file", data) }

// Load reads the app file at path.
func Load(path string) (ipc.App, error) {
	data, err := tomlfile.Read(op, path)
	if err != nil {
		return ipc.App{}, err
	}
	return parse(path, data)
}

func parse(name string, data []byte) (ipc.App, error) {
	f := file{Retention: defaults()}
	doc, err := tomlfile.Decode(op, name, data, &f)
	if err != nil {
		return ipc.App{}, err
	}
	app, fault := f.app()
	if fault == nil {
		fault = check(app)
	}
	if fault != nil {
		return ipc.App{}, doc.Errorf(fault.key, fault.nth, "%s", fault.what).WithHint("%s", fault.hint)
	}
	return app, nil
}

func defaults() retention {
	d := ipc.DefaultRetention()
	return retention{d.KeepLast, d.DailyDays, d.KeepTurns, d.KeepSafety, tomlfile.Size{Bytes: d.MaxBytes}, d.ExpireAfter}
}

func (f *file) app() (ipc.App, *fault) {
	app := ipc.App{
		Slug: f.Slug, Owner: f.Owner, Workspace: f.Workspace, Unit: f.Unit, Run: f.Run, Engine: f.Engine,
		Domain: f.Domain, URI: f.URI, Shutdown: f.Shutdown, Auto: f.Auto, Follow: f.Follow, Titles: f.Titles, Exclude: f.Exclude,
		Retention: ipc.Retention{
			KeepLast: f.Retention.KeepLast, DailyDays: f.Retention.DailyDays, KeepTurns: f.Retention.KeepTurns, KeepSafety: f.Retention.KeepSafety,
			MaxBytes: f.Retention.MaxBytes.Bytes, ExpireAfter: f.Retention.ExpireAfter,
		},
		Forking: ipc.Forking(f.Fork), Remoting: ipc.Remoting(f.Remote),
	}
	if f.Retention.MaxBytes.Bad {
		return app, &fault{key: "retention.max_bytes", what: "max_bytes is not a size", hint: tomlfile.SizeHint}
	}
	for _, name := range f.Volumes {
		app.Volumes = append(app.Volumes, ipc.Volume{Name: name})
	}
	if f.Health != nil {
		app.Health = &ipc.Health{URL: f.Health.URL, Command: f.Health.Command, Timeout: f.Health.Timeout}
	}
	for i, d := range f.Databases {
		db, problem := complete(ipc.Database{Name: d.Name, Driver: d.Driver, DSN: d.DSN, Mode: d.Mode, DataDir: d.DataDir, Unit: d.Unit, Env: d.Env})
		if problem != nil {
			return app, problem.in(i)
		}
		app.Databases = append(app.Databases, db)
	}
	return app, nil
}

// fault is an error in the description of an app: its place (the key of the app file, and which of several databases), a
// message and a remedy.
type fault struct {
	key        string
	nth        int
	what, hint string
}

// in returns f for the nth [[database]].
func (f fault) in(nth int) *fault {
	f.key, f.nth = "database."+f.key, nth
	return &f
}

// Validate checks an app from any source against the rules of app files.
func Validate(app ipc.App) error {
	if f := check(app); f != nil {
		return errs.New(errs.Invalid, "check app", "%s", f.what).WithHint("%s", f.hint)
	}
	return nil
}
