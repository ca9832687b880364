package detect

import (
	"fmt"

	"mulligan/appfile"
	"mulligan/ipc"
)

// Protected returns what of a folder will be protected, in words, each after "protects", and how its git repository is left out, after
// "leaves_out".
func (f Findings) Protected(dir string) (list [][2]string) {
	protects := func(format string, args ...any) {
		list = append(list, [2]string{"protects", fmt.Sprintf(format, args...)})
	}
	protects("files: everything in %s, ignored files included", dir)
	switch f.Git {
	case RepositoryInside:
		protects("git: the repository's state (.git) is part of the files")
	case RepositoryOutside:
		list = append(list, [2]string{"leaves_out", "git: the repository lies outside of the folder (it is a worktree or a submodule): " +
			"HEAD, index, branches and commits stay as they are in a rollback"})
	}
	for _, db := range f.Databases {
		what := fmt.Sprintf("database %s: %s %s", db.Name, db.Driver, appfile.Redact(db.Database))
		if db.Driver != "sqlite" {
			what += ", if the daemon supports it"
		}
		if db.Source != "" {
			what += " (" + db.Source + ")"
		}
		protects("%s", what)
	}
	if p := f.Project; p.Name != "" {
		protects("containers: compose project %s (%s), if it is up: they are stopped for a rollback, and started again", p.Name, p.File)
		for _, v := range p.Volumes {
			protects("volume %s: its files", v)
		}
	}
	return list
}

// SplitServers returns the databases of dbs that are files, and a sentence for
// each of the others. refusal is the error with which the daemon refused the app.
func SplitServers(dbs []ipc.Database, refusal error) (files []ipc.Database, left []string) {
	for _, db := range dbs {
		if db.Driver == "sqlite" {
			files = append(files, db)
			continue
		}
		left = append(left, fmt.Sprintf("the %s database %s is NOT protected: %s; `mulligan app set database=SPEC` adds it once that works",
			db.Driver, db.Name, ipc.Body(refusal).Message))
	}
	return files, left
}
