// Nfpm writes nfpm's description of the packages for this host, from the entry "nfpms" of packaging/goreleaser.yaml: what GoReleaser
// packages for every host, make packages does for this one, without the rest of a release.
//
//	nfpm GORELEASER.YAML VERSION TIME FOLDER >nfpm.yaml
//
// TIME is that of the commit, in seconds since 1970; FOLDER has the programs.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: nfpm GORELEASER.YAML VERSION TIME FOLDER")
		os.Exit(2)
	}
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = run(text, os.Args[2], os.Args[3], os.Args[4], os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nfpm:", err)
		os.Exit(1)
	}
}

// ours are the keys that GoReleaser adds to nfpm's own.
var ours = []string{"id", "ids", "formats", "package_name", "file_name_template", "bindir"}

func run(text []byte, version, seconds, programs string, out io.Writer) error {
	var file struct {
		Name     string           `yaml:"project_name"`
		Packages []map[string]any `yaml:"nfpms"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return err
	}
	if len(file.Packages) != 1 {
		return fmt.Errorf(`"nfpms" has %d entries, not 1`, len(file.Packages))
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("%q is no time: %w", seconds, err)
	}
	p := file.Packages[0]
	for _, key := range ours {
		delete(p, key)
	}
	overrides, _ := p["overrides"].(map[string]any)
	for _, o := range overrides { // GoReleaser's name of nfpm's "depends"
		if o, ok := o.(map[string]any); ok {
			o["depends"] = o["dependencies"]
			delete(o, "dependencies")
		}
	}
	contents, ok := p["contents"].([]any)
	if !ok {
		return errors.New(`"contents" is no list`)
	}
	for _, name := range []string{"mulligan", "mulligand"} {
		contents = append(contents, map[string]any{
			"src": filepath.Join(programs, name), "dst": "/usr/bin/" + name, "file_info": map[string]any{"mode": 0o755},
		})
	}
	p["name"], p["arch"], p["platform"], p["version"], p["contents"] = file.Name, runtime.GOARCH, "linux", version, contents
	p["mtime"] = time.Unix(at, 0).UTC().Format(time.RFC3339)
	p["homepage"] = os.Getenv("RELEASE_HOME")
	return yaml.NewEncoder(out).Encode(p)
}
