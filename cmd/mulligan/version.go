package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version and commit are set by the linker: -ldflags "-X main.version=1.2.3 -X main.commit=…".
var version, commit string

// buildInfo identifies the build of this program.
type buildInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// buildVersion returns the version that the linker was given, completed from Go's build information.
func buildVersion() buildInfo {
	b := buildInfo{Version: version, Commit: commit, Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	var revision, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if b.Commit == "" && revision != "" {
		b.Commit = revision + dirty
	}
	if b.Commit == "" {
		b.Commit = "unknown"
	}
	return b
}

func (b buildInfo) line() string {
	return fmt.Sprintf("mulligan %s (commit %s, %s)", b.Version, b.Commit, b.Go)
}

type versionCmd struct{ *cli }

func newVersion(c *cli) *cobra.Command {
	f := &versionCmd{cli: c}
	return &cobra.Command{
		Use:     "version",
		Short:   "Print this program's version",
		Example: "  mulligan version --json",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return f.run() },
	}
}

func (f *versionCmd) run() error {
	if f.out.JSON {
		return f.out.PrintJSON(buildVersion())
	}
	f.out.Println(buildVersion().line())
	return nil
}
