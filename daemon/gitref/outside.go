package gitref

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/snap/beneath"
)

// maxWorktrees bounds how many worktrees of a repository are read.
const maxWorktrees = 1000

// Gap is a finding of Outside, with a remedy.
type Gap struct{ What, Remedy string }

// Outside returns the gaps of checkpoints that are caused by git worktrees: the repository of the workspace may be elsewhere,
// or other worktrees of its repository may be. Outside reads nothing outside of the workspace.
func Outside(root *beneath.Root) []Gap {
	if elsewhere := repositoryElsewhere(root); elsewhere != "" {
		return []Gap{{
			fmt.Sprintf("The git repository is not captured: .git leads to %s, outside of the workspace (a worktree's or a submodule's does), "+
				"so HEAD, index, branches and commits stay as they are when the files go back.", word(elsewhere)),
			"`git reflog` names the earlier commits, and `git reset` brings the index in line; to have them in checkpoints, protect the folder that holds both",
		}}
	}
	trees := worktreesElsewhere(root)
	if len(trees) == 0 {
		return nil
	}
	more := ""
	if len(trees) > 1 {
		more = fmt.Sprintf(" and %d more", len(trees)-1)
	}
	return []Gap{{
		fmt.Sprintf("The git repository serves worktrees outside of the workspace (%s%s): a rollback takes their branches, HEAD and index back too, "+
			"but not their files.", word(trees[0]), more),
		"`git worktree remove` those that are no longer needed, or protect the folder that holds them all",
	}}
}

// repositoryElsewhere returns the path that .git refers to, if that is outside of the workspace.
func repositoryElsewhere(root *beneath.Root) string {
	own := ".git"
	f, err := root.OpenFile(own, unix.O_PATH, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return ""
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return "another folder through a symbolic link"
	case unix.S_IFREG:
		text, _ := read(root, own)
		target, found := strings.CutPrefix(text, "gitdir:")
		if target = strings.TrimSpace(target); !found || target == "" {
			return ""
		}
		in, ok := inside(root, ".", target)
		if !ok {
			return target
		}
		own = in
	}
	text, ok := read(root, path.Join(own, "commondir"))
	if !ok {
		return ""
	}
	common := strings.TrimSpace(text)
	if _, ok := inside(root, own, common); ok || common == "" {
		return ""
	}
	return common
}

// worktreesElsewhere lists the worktrees of the workspace's repository that lie outside of the workspace.
func worktreesElsewhere(root *beneath.Root) (list []string) {
	r, ok := find(root)
	if !ok {
		return nil
	}
	dir, err := root.OpenFile(path.Join(r.common, "worktrees"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxWorktrees) // worktrees that cannot be listed are left out
	for _, name := range names {
		own := path.Join(r.common, "worktrees", name)
		text, ok := read(root, path.Join(own, "gitdir")) // gitdir has the path of the worktree's .git file
		tree := strings.TrimSpace(text)
		if !ok || tree == "" {
			continue
		}
		if _, ok := inside(root, own, tree); !ok {
			list = append(list, path.Dir(tree))
		}
	}
	return list
}

// word returns a path of a repository for messages: on one line, and shortened.
func word(p string) string {
	const most = 200
	if len(p) > most {
		p = p[:most] + "…"
	}
	if strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return fmt.Sprintf("%q", p)
	}
	return p
}
