package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/cmd/mulligan/manual"
	"mulligan/testkit"
)

// Every command has a manual page with all of its help, in roff without warnings.
func TestManualPages(t *testing.T) {
	root := newRoot(newCLI(), nil)
	root.InitDefaultHelpCmd()
	testkit.Need(t, "groff")
	list := manual.Pages(root)
	if len(list) < 30 {
		t.Errorf("%d pages", len(list))
	}
	for _, cmd := range list {
		var page bytes.Buffer
		if err := manual.Write(&page, cmd); err != nil {
			t.Fatal(err)
		}
		text := page.String()
		var out, problems bytes.Buffer
		run := exec.CommandContext(t.Context(), "groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-P-cbou", "-rLL=10000n")
		run.Stdin, run.Stdout, run.Stderr = strings.NewReader(text), &out, &problems
		if err := run.Run(); err != nil || problems.Len() > 0 {
			t.Errorf("%s: %v: %s\n%s", cmd.CommandPath(), err, &problems, text)
		}
		shown := spoken(out.String())
		for _, part := range []string{cmd.Short[1:], cmd.Long, cmd.Example, cmd.UseLine()} {
			if !strings.Contains(shown, spoken(part)) {
				t.Errorf("%s: the page lacks %q:\n%s", cmd.CommandPath(), part, shown)
			}
		}
		lines := strings.Split(out.String(), "\n")
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if strings.HasPrefix(line, " ") && !slices.ContainsFunc(lines, func(l string) bool { return spoken(l) == spoken(line) }) {
				t.Errorf("%s: the page joins the line %q with others:\n%s", cmd.CommandPath(), line, &out)
			}
		}
	}
}

// spoken returns text without the differences that typesetting makes.
func spoken(text string) string {
	text = strings.NewReplacer("…", "...", "‐", "-", "−", "-", "’", "'", "‘", "`", "´", "'").Replace(text)
	return strings.Join(strings.Fields(text), " ")
}

// A real bash completes with the script.
func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	var script bytes.Buffer
	if err := newRoot(newCLI(), nil).GenBashCompletionV2(&script, true); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "mulligan")); err != nil { // under that name, this test program is mulligan
		t.Fatal(err)
	}
	for line, want := range map[string]string{"roll": "rollback", "install co": "codex", "install --sc": "--scope", "completion f": "fish"} {
		args := strings.Split("mulligan "+line, " ")
		ask := script.String() + `
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE} COMP_TYPE=9
compopt() { :; }
_get_comp_words_by_ref() { # of the package bash-completion
  cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=("${COMP_WORDS[@]}") cword=$COMP_CWORD
}
__start_mulligan
printf '%s\n' "${COMPREPLY[@]}"
`
		cmd := exec.CommandContext(t.Context(), bash, append([]string{"-c", ask, "bash"}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%q gives %q, %v", line, out, err)
		}
	}
}
