package mcpserver

import (
	"regexp"
	"strings"

	"mulligan/ipc"
)

// Texts of the daemon name the client's commands, in backquotes, and flags. A model has no command line: this file has what stands for
// each of them in an answer to it. That is the tool that does the same, or, where there is none, what the user can do.

// command matches a command of mulligan in a text.
var command = regexp.MustCompile("`(mulligand?) ?([^`]*)`")

// tools that do what a command does. Their calls get the app of the answer.
var toolFor = map[string]string{
	"create": "create_checkpoint", "list": "list_checkpoints", "diff": "diff_checkpoint", "undo": "rollback_app", "redo": "rollback_app",
	"rollback": "rollback_app", "revert": "revert_conversation_writes", "pin": "pin_checkpoint", "unpin": "pin_checkpoint",
	"delete": "delete_checkpoint", "prune": "delete_checkpoint", "fork": "fork_app", "forks": "list_forks", "compare": "compare_forks",
	"keep": "keep_fork", "drop": "drop_fork", "turns": "list_checkpoints",
}

// byUser has what stands for the commands that only the user has. SETTING is what the command would set.
var byUser = map[string]string{
	"app add": "registering the app (the user can do that)", "app list": "the list of apps that the user has",
	"app remove": "having the user remove the app from mulligan", "app set": "the app's setting SETTING (the user can make it)",
	"clone":    "having the user make the app from a remote",
	"fetch":    "having the user fetch the checkpoint from the remote",
	"app show": "the app's settings (the user can look at them)", "bisect": "a search for the first bad checkpoint by the user",
	"doctor": "a check of this host by the user", "exec": "a command that the user runs in the fork",
	"init": "having the user protect the folder with mulligan", "log": "the audit trail (the user can read it)",
	"push": "having the user send checkpoints to the remote", "remote": "the remote's settings (the user can make them)",
	"rewind": "rollback_app", "show": "list_checkpoints with details=true", "status": "the daemon's state (the user can look at it)",
	"token": "a token (the user can make one)", "ui": "the page in the user's browser", "verify": "a check of what is stored by the user",
	"version": "the client's version (the user can look it up)",
	"rebuild": "a repair of its records by the user", "--user": "a daemon of the user's own",
}

// argumentOf has the argument of the tools that is the same as a flag of a command. Without one, the flag is an option that the user has.
var argumentOf = map[string]string{
	"--app": "app_id", "--scope": "scope", "--without": "without", "--start": "start=true", "--no-start": "start=false", "--no-network": "no_network=true", "--dry-run": "dry_run=true",
	"--force": "", "--include-others": "", "--discard": "", "--dir": "", "--slug": "", "--state-dir": "", "--socket": "", "--at": "",
	"--bad": "", "--good": "", "--recipient": "", "--endpoint": "", "--identity": "", "--owner": "", "--db": "", "--take-over": "", "--daemon-keys": "",
}

// option matches a flag.
var option = regexp.MustCompile(`--[a-z][a-z-]*`)

// wording puts texts of the daemon into words for a model, about an app whose id may be "".
type wording ipc.AppID

// text returns s without commands of mulligan.
func (w wording) text(s string) string {
	var b strings.Builder
	for s != "" {
		at := command.FindStringSubmatchIndex(s)
		if at == nil {
			break
		}
		b.WriteString(flags(s[:at[0]]))
		b.WriteString(w.instead(words(s[at[4]:at[5]])))
		s = s[at[1]:]
	}
	return b.String() + flags(s)
}

// texts does the same for each text of a list.
func (w wording) texts(list []string) []string {
	var all []string
	for _, s := range list {
		all = append(all, w.text(s))
	}
	return all
}

// flags returns a text outside of commands, without flags.
func flags(s string) string {
	return option.ReplaceAllStringFunc(s, func(f string) string {
		argument, known := argumentOf[f]
		switch {
		case !known || f == "--no-start": // of docker compose, where no command of mulligan stands around it
			return f
		case argument == "":
			return "the user's option " + strings.TrimPrefix(f, "--")
		}
		return argument
	})
}

// word matches a word of a command; what is in single quotes is part of it.
var word = regexp.MustCompile(`(?:[^\s']|'[^']*')+`)

// words returns the words of a command without their quotes.
func words(s string) []string {
	list := word.FindAllString(s, -1)
	for i := range list {
		list[i] = strings.ReplaceAll(list[i], "'", "")
	}
	return list
}

// instead returns what stands for a command, which is given by its words behind the program's name.
func (w wording) instead(words []string) string {
	if len(words) == 0 {
		return "mulligan"
	}
	name, rest := words[0], words[1:]
	if _, two := byUser[strings.Join(words[:min(2, len(words))], " ")]; two && len(rest) > 0 {
		name, rest = name+" "+rest[0], rest[1:]
	}
	if tool, ok := toolFor[name]; ok {
		return w.call(name, tool, rest)
	}
	said, ok := byUser[name]
	if !ok {
		return "what the user can do with mulligan"
	}
	var settings []string
	for i, r := range rest {
		if !strings.HasPrefix(r, "-") && (i == 0 || rest[i-1] != "--app") {
			settings = append(settings, r)
		}
	}
	return strings.Replace(said, "SETTING", strings.Join(settings, " "), 1)
}

// call returns the call of a tool that does what a command with these arguments does.
func (w wording) call(name, tool string, args []string) string {
	call := invocation{tool: tool, app: ipc.AppID(w)}
	var lists [2][]string // scope and without
	byUser := ""
	for i := 0; i < len(args); i++ {
		arg, value := args[i], ""
		if strings.HasPrefix(arg, "-") && i+1 < len(args) {
			value = args[i+1]
		}
		switch arg {
		case "--scope":
			lists[0] = append(lists[0], value)
			i++
		case "--without":
			lists[1] = append(lists[1], value)
			i++
		case "--app", "--conversation":
			i++ // the app is known, and the conversation a placeholder
		case "--no-start":
			call.start = new(bool)
		case "--ids", "--json", "--dry-run", "--all", "--": // the tools say this anyway
		case "--discard":
			byUser += " with the option discard " + value
			i++
		default:
			if other, is := strings.CutPrefix(arg, "--"); is {
				byUser += " with the option " + other
				continue
			}
			switch {
			case tool == "drop_fork" && arg != "FORK":
				call.rest = append(call.rest, "name", arg)
			case tool != "drop_fork" && name != "undo":
				call.checkpoint = ipc.CheckpointID(arg)
			}
		}
	}
	switch {
	case byUser != "":
		return "the user's " + name + byUser
	case name == "turns":
		return strings.TrimSuffix(callOf(tool, call.app, "trigger", "agent"), ")") + ", details=true)"
	case name == "unpin":
		call.more = "pinned=false"
	}
	call.scope, call.without = lists[0], lists[1]
	if call.app == "" && call.checkpoint == "" && len(call.rest) == 0 && len(call.scope) == 0 && call.more == "" {
		return tool
	}
	return call.again()
}
