package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
)

// The write-ahead log's format: https://www.sqlite.org/fileformat2.html#walformat.
const (
	walHeader   = 32
	frameHeader = 24
	walMagic    = 0x377f0682 // the last bit says that sums read big-endian words
)

// walDamaged says what is wrong with a write-ahead log; "" is nothing. SQLite
// believes the log up to the first frame whose sum is wrong, and overwrites the rest. That is right
// for an end that a power cut tore off, and loses changes where a frame in the middle was damaged.
func walDamaged(path string) (what string, err error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	head := make([]byte, walHeader)
	if _, err := io.ReadFull(r, head); err != nil {
		return "", ended(err) // nothing was committed to it yet
	}
	w := walSum{big: head[3]&1 == 1}
	w.add(head[:24])
	size := binary.BigEndian.Uint32(head[8:])
	if binary.BigEndian.Uint32(head)&^1 != walMagic || !w.is(head[24:]) || size < 512 || size > 65536 {
		return "its header is damaged", nil
	}
	frame := make([]byte, frameHeader+int(size))
	for good := true; ; {
		if _, err := io.ReadFull(r, frame); err != nil {
			return "", ended(err)
		}
		if string(frame[8:16]) != string(head[16:24]) { // it is of an earlier round of the log, or damaged
			good = false
			continue
		}
		w.add(frame[:8])
		w.add(frame[frameHeader:])
		if !good || !w.is(frame[16:]) {
			return "a change in the log is damaged; SQLite would ignore this change and all later ones", nil
		}
	}
}

// ended is no error at the file's end.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// walSum is the log's running sum.
type walSum struct {
	big    bool
	s0, s1 uint32
}

func (w *walSum) add(p []byte) {
	var order binary.ByteOrder = binary.LittleEndian
	if w.big {
		order = binary.BigEndian
	}
	for ; len(p) >= 8; p = p[8:] {
		w.s0 += order.Uint32(p) + w.s1
		w.s1 += order.Uint32(p[4:]) + w.s0
	}
}

func (w *walSum) is(p []byte) bool {
	return binary.BigEndian.Uint32(p) == w.s0 && binary.BigEndian.Uint32(p[4:]) == w.s1
}
