package supervise

import (
	"errors"
	"io"
	"os"
)

// trimLog rotates the log once it is too big: its last part becomes run.log.1
// and the file goes on from nothing. The command holds it open, for appending,
// and may be older than this daemon; so it is copied and cut, not renamed. Lines
// that are written in between can be lost. Failing is not worth a failing app:
// the next look tries again.
func (p *Process) trimLog() {
	info, err := os.Stat(p.LogPath())
	if err != nil || info.Size() <= p.time.logLimit {
		return
	}
	if err := keepTail(p.LogPath(), p.time.logLimit); err == nil {
		os.Truncate(p.LogPath(), 0)
	}
}

// keepTail copies the last limit bytes of the file at path to path.1.
func keepTail(path string, limit int64) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	if _, err := from.Seek(-limit, io.SeekEnd); err != nil {
		return err
	}
	to, err := os.OpenFile(path+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.LimitReader(from, limit))
	return errors.Join(err, to.Close())
}
