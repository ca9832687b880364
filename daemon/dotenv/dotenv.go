// Package dotenv replaces lines of the dotenv files in a fork's workspace, and puts them back. The files are opened beneath the workspace
// without following links, with the rights of its owner, and replaced durably. Nothing of their content comes into an error.
package dotenv

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap/beneath"
)

// maxFile bounds a dotenv file, in bytes.
const maxFile = 1 << 20

// timeout bounds how long reading or replacing the files of a folder takes. Its filesystem may be under the owner's control, and never answer.
const timeout = time.Minute

// assignment is the beginning of a line that sets a variable, up to its value.
var assignment = regexp.MustCompile(`^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=[ \t]*`)

// each calls change with each line that sets a variable and ends on the same line: the beginning of the line up to the value, and the
// rest. It returns the text with what change returns in their places.
func each(text string, change func(variable, head, rest string) string) string {
	lines := strings.Split(text, "\n")
	open := "" // the quotation mark of a value that goes on
	for i, line := range lines {
		if open != "" {
			if closes(line, open) {
				open = ""
			}
			continue
		}
		bare, cr := strings.CutSuffix(line, "\r")
		m := assignment.FindStringSubmatch(bare)
		if m == nil {
			continue
		}
		rest := bare[len(m[0]):]
		if rest != "" && strings.Contains(`"'`+"`", rest[:1]) && !closes(rest[1:], rest[:1]) {
			open = rest[:1]
			continue
		}
		lines[i] = change(m[1], m[0], rest)
		if cr {
			lines[i] += "\r"
		}
	}
	return strings.Join(lines, "\n")
}

// closes reports whether a text has the quotation mark that ends a value.
func closes(text, mark string) bool {
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && mark == `"`:
			i++
		case text[i:i+1] == mark:
			return true
		}
	}
	return false
}

// value returns the value in the rest of a line, without quotation marks and comments.
func value(rest string) string {
	if rest != "" && strings.Contains(`"'`+"`", rest[:1]) {
		inner, _, _ := strings.Cut(rest[1:], rest[:1])
		return inner
	}
	rest, _, _ = strings.Cut(rest, " #")
	return strings.TrimSpace(rest)
}

// Values returns the variables that the texts of dotenv files set. Of several values, the last one is taken.
func Values(texts []string) map[string]string {
	all := map[string]string{}
	for _, text := range texts {
		each(text, func(variable, head, rest string) string {
			all[variable] = value(rest)
			return head + rest
		})
	}
	return all
}

// Lines returns the lines of files that are to be replaced: set returns the text to take a value's place. texts are the files' contents.
func Lines(files, texts []string, set func(variable, value string) (string, bool)) (list []ipc.DotenvLine) {
	for i, text := range texts {
		each(text, func(variable, head, rest string) string {
			if to, ok := set(variable, rest); ok && to != rest {
				list = append(list, ipc.DotenvLine{File: files[i], Variable: variable, Was: head + rest, Is: head + to})
			}
			return head + rest
		})
	}
	return list
}

// replace puts the fork's lines into the text of a file, or the parent's. A line that is neither stays as it is: somebody changed it.
func replace(file, text string, lines []ipc.DotenvLine, parents bool) string {
	used := make([]bool, len(lines))
	return each(text, func(variable, head, rest string) string {
		for i, l := range lines {
			from, to := l.Was, l.Is
			if parents {
				from, to = to, from
			}
			if !used[i] && l.File == file && l.Variable == variable && from == head+rest {
				used[i] = true
				return to
			}
		}
		return head + rest
	})
}

// reading asks for the content of files.
type reading struct {
	Folder string
	Files  []string
}

// Read reads dotenv files in a folder with a user's rights. One that does not exist is empty.
func Read(ctx context.Context, user privsep.User, folder string, files []string) ([]string, error) {
	if len(files) == 0 {
		return nil, nil
	}
	return read.Call(ctx, user, reading{folder, files})
}

var read = privsep.Define("dotenv.read", func(ctx context.Context, r reading) (texts []string, err error) {
	root, err := beneath.Open(r.Folder)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, file := range r.Files {
		text, _, err := content(root, file)
		if err != nil {
			return nil, unreadable(file, err)
		}
		texts = append(texts, text)
	}
	return texts, nil
}).Within(timeout)

func unreadable(file string, err error) error {
	return (&errs.Error{Kind: errs.Invalid, Message: "the dotenv file " + file + " cannot be used", Err: err}).
		WithHint("make it a regular file of the app's owner, or take it out of fork.dotenv")
}

// content reads a file. One that does not exist is empty, and has no mode.
func content(root *beneath.Root, file string) (string, os.FileMode, error) {
	b, mode, err := root.ReadFile(file, maxFile)
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return string(b), mode, err
}

// replacing asks for lines in the files of a folder.
type replacing struct {
	Folder  string
	Lines   []ipc.DotenvLine
	Parents bool
}

// Replace puts a fork's lines into its dotenv files in folder with a user's rights, or those of its parent. It may be repeated.
func Replace(ctx context.Context, user privsep.User, folder string, lines []ipc.DotenvLine, parents bool) error {
	if len(lines) == 0 {
		return nil
	}
	_, err := replaceAll.Call(ctx, user, replacing{folder, lines, parents})
	return err
}

var replaceAll = privsep.Define("dotenv.replace", func(ctx context.Context, r replacing) (done bool, err error) {
	root, err := beneath.Open(r.Folder)
	if err != nil {
		return false, err
	}
	defer root.Close()
	seen := map[string]bool{}
	for _, l := range r.Lines {
		if seen[l.File] {
			continue
		}
		seen[l.File] = true
		text, mode, err := content(root, l.File)
		if err != nil {
			return false, unreadable(l.File, err)
		}
		if next := replace(l.File, text, r.Lines, r.Parents); next != text {
			if err := write(root, l.File, next, mode); err != nil {
				return false, (&errs.Error{Kind: errs.Failed, Message: "the dotenv file " + l.File + " cannot be replaced, and is as it was", Err: err}).
					WithHint("see whether the disk is full, and whether the app's owner may write in the file's folder")
			}
		}
	}
	return true, nil
}).Within(timeout)

// write replaces a file beneath root durably.
func write(root *beneath.Root, file, text string, mode os.FileMode) (err error) {
	dir, name, err := root.Parent(file)
	if err != nil {
		return err
	}
	defer dir.Close()
	temp := "." + name + "." + rand.Text()
	f, err := dir.OpenFile(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Chmod(mode.Perm())
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errs.Also(err, f.Close()); err == nil {
		err = unix.Renameat(dir.FD(), temp, dir.FD(), name)
	}
	if err != nil {
		return errs.Also(err, unix.Unlinkat(dir.FD(), temp, 0))
	}
	return unix.Fsync(dir.FD())
}
