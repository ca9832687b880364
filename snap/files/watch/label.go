package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// fsnotify takes the path of a folder, hands it to the kernel, which follows
// every link in it, and knows the watch by that path from then on. Both are
// wrong for a hostile tree: while a path is being resolved its owner can put a
// link to a foreign folder in it, and a folder that was renamed is still known
// by its old path, or taken for another one that is there now.
//
// So each folder is opened safely first and watched by that descriptor, through
// /proc/self/fd/N; and because N is soon that of another folder, the path leads
// to it through a number of its own, spelled with links of the CookieDir that
// all mean ".":
//
//	/var/lib/…/watch/03/fa/open/9
//	                 └───┤ │    └ the folder's descriptor
//	                     │ └ a link to /proc/self/fd
//	                     └ the number 0x3fa, in links to "."
const (
	fdLink     = "open"
	cookiesDir = "cookies"
)

// makeCookieDir makes the folder of the links and of the cookies.
func makeCookieDir(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, cookiesDir), 0o700); err != nil {
		return err
	}
	if err := ensureLink("/proc/self/fd", filepath.Join(dir, fdLink)); err != nil {
		return err
	}
	for d := range 256 {
		if err := ensureLink(".", filepath.Join(dir, fmt.Sprintf("%02x", d))); err != nil {
			return err
		}
	}
	return nil
}

func ensureLink(to, at string) error {
	if there, err := os.Readlink(at); err == nil && there == to {
		return nil
	}
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	return os.Symlink(to, at)
}

// label is the path by which the folder behind fd is watched as number id.
func (w *Watcher) label(id uint64, fd int) string {
	digits := strconv.AppendUint(nil, id, 16)
	label := []byte(w.opt.CookieDir)
	if len(digits)%2 != 0 {
		label = append(label, '/', '0', digits[0])
		digits = digits[1:]
	}
	for ; len(digits) > 0; digits = digits[2:] {
		label = append(label, '/', digits[0], digits[1])
	}
	label = append(label, "/"+fdLink+"/"...)
	return string(strconv.AppendInt(label, int64(fd), 10))
}

// unlabel gives the number in the path of an event, and the name in the folder
// that it is about; "" is the folder itself.
func (w *Watcher) unlabel(path string) (id uint64, name string, ok bool) {
	spelled, rest, ok := strings.Cut(strings.TrimPrefix(path, w.opt.CookieDir), "/"+fdLink+"/")
	if !ok {
		return 0, "", false
	}
	id, err := strconv.ParseUint(strings.ReplaceAll(spelled, "/", ""), 16, 64)
	_, name, _ = strings.Cut(rest, "/")
	return id, name, err == nil
}
