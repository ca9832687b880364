// Package collide finds what of an app would collide with its forks, where they run on the same host without namespaces: ports, paths and
// sockets that the app has a right to and that a copy of it names too.
package collide

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mulligan/errs"
	"mulligan/ipc"
)

// Ports returns the port that each of the variables in fork.ports holds in the app; 0 means that it is not known. The app's dotenv files
// set values. A variable without a value may have a default in the app's command, as in ${PORT:-3000}; otherwise it holds the first port of
// the app that no other one holds. The error, if forks would certainly take a port of the app's or work in its folder, says why.
func Ports(app ipc.App, values map[string]string) (map[string]int, error) {
	var check []string
	if app.Health != nil {
		check = app.Health.Command
	}
	holds := map[string]int{}
	for _, name := range app.Forking.Ports {
		text, ok := values[name]
		if m := fallback(name).FindStringSubmatch(strings.Join(append(slices.Clone(app.Run), check...), "\n")); !ok && m != nil {
			text = m[1]
		}
		holds[name], _ = strconv.Atoi(text) // 0: not known
	}
	if len(app.Run) == 0 {
		return holds, nil
	}
	for _, port := range listens(app) {
		if err := assign(app.Forking.Ports, holds, port); err != nil {
			return nil, err
		}
	}
	for _, word := range app.Run {
		if err := named(app, holds, "run", word); err != nil {
			return nil, err
		}
	}
	for _, word := range check {
		if err := named(app, holds, "the health check", word); err != nil {
			return nil, err
		}
	}
	return holds, nil
}

// listens lists the ports at which the app is asked, as its settings say.
func listens(app ipc.App) (list []int) {
	if app.Health != nil && app.Health.URL != "" {
		if u, err := url.Parse(app.Health.URL); err == nil {
			if port, err := strconv.Atoi(u.Port()); err == nil {
				list = append(list, port)
			}
		}
	}
	for _, port := range app.Forking.Expose {
		if !slices.Contains(list, port) {
			list = append(list, port)
		}
	}
	return list
}

// assign finds the variable that holds a port.
func assign(names []string, holds map[string]int, port int) error {
	free := ""
	for _, name := range names {
		if holds[name] == port {
			return nil
		}
		if holds[name] == 0 && free == "" {
			free = name
		}
	}
	if free == "" {
		return errs.New(errs.Unsupported, "", "the app listens at port %d, its fork would do so too, and no variable of fork.ports holds it", port).
			WithHint("let the app read its port from a variable, and name it: `mulligan app set fork.ports=PORT`")
	}
	holds[free] = port
	return nil
}

// named refuses a command that names what is the app's.
func named(app ipc.App, holds map[string]int, what, word string) error {
	for name := range holds {
		word = fallback(name).ReplaceAllString(word, "")
	}
	if namesPath(word, app.Workspace) {
		return errs.New(errs.Unsupported, "", "%s names the app's folder %s, and would not use the fork's", what, app.Workspace).
			WithHint("write paths that begin at the workspace, as in ./server")
	}
	for _, name := range app.Forking.Ports {
		port := holds[name]
		if port != 0 && regexp.MustCompile(`(?:^|\D)`+strconv.Itoa(port)+`(?:$|\D)`).MatchString(word) {
			return errs.New(errs.Unsupported, "", "%s names port %d, and would not use the fork's", what, port).
				WithHint(`let a shell put it in: ["sh", "-c", "exec … $%s"]`, name)
		}
	}
	return nil
}

// fallback matches an expansion of a variable in a shell's command, with its default if that is a number.
func fallback(name string) *regexp.Regexp {
	return regexp.MustCompile(`\$\{` + regexp.QuoteMeta(name) + `:?[-=](\d+)\}`)
}

// namesPath reports whether a text has a path, or one below it.
func namesPath(text, path string) bool { return ReplacePath(text, path, "") != text }

// ReplacePath replaces a path in a text by another one. Longer names that begin as the path does stay.
func ReplacePath(text, path, by string) string {
	var out strings.Builder
	for path != "" {
		before, after, found := strings.Cut(text, path)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		if after == "" || !strings.ContainsAny(after[:1], "-._~+@%") && !wordly(after[0]) {
			out.WriteString(by)
		} else {
			out.WriteString(path)
		}
		text = after
	}
	return text
}

func wordly(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c >= 0x80
}

// sharedPath reports whether a text names a path in a folder for temporary files, which all apps of a host share.
func sharedPath(text string) bool { return shared.MatchString(text) }

var shared = regexp.MustCompile(`(?:^|[^\w./-])(?:unix:(?://)?)?/(?:tmp|var/tmp|dev/shm)/[\w.-]`)
