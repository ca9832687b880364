package remote

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"mulligan/errs"
)

// maxPlain bounds what a sealed object may grow to when it is opened, in bytes.
const maxPlain = 1 << 30

// ParseRecipients returns the recipients that texts name, such as age1….
func ParseRecipients(texts []string) (list []age.Recipient, err error) {
	const op = "read recipients"
	for _, text := range texts {
		r, err := age.ParseRecipients(strings.NewReader(text))
		if err != nil || len(r) != 1 || strings.Contains(text, "\n") {
			return nil, errs.New(errs.Invalid, op, "%.100q is not a recipient", text).
				WithHint("a recipient is like age1…: `mulligan remote key new` makes one, with its identity")
		}
		list = append(list, r...)
	}
	if len(list) == 0 {
		return nil, errs.New(errs.Invalid, op, "a remote needs a recipient, who alone can read what is sent").
			WithHint("`mulligan remote key new` makes an identity and its recipient: --recipient age1…")
	}
	return list, nil
}

var (
	encoder, _ = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault))
	fast, _    = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	decoder, _ = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxPlain))
)

// buffers are those of packs, before and after sealing. They are used again, since memory that is new to the process has to be cleared.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func takeBuffer() *bytes.Buffer { return buffers.Get().(*bytes.Buffer) }

// giveBuffer takes back a buffer whose bytes nobody uses any more.
func giveBuffer(b *bytes.Buffer) {
	b.Reset()
	buffers.Put(b)
}

// seal compresses p and encrypts it for the recipients.
func seal(p []byte, to []age.Recipient) ([]byte, error) {
	out := new(bytes.Buffer)
	err := sealInto(out, p, to)
	return out.Bytes(), err
}

// sealInto appends to out what seal returns.
func sealInto(out *bytes.Buffer, p []byte, to []age.Recipient) error {
	packed := takeBuffer()
	defer giveBuffer(packed)
	z := encoder
	if len(p) >= packBytes { // of many, so that time counts more than a tenth of their size
		z = fast
	}
	packed.Grow(z.MaxEncodedSize(len(p)))
	frame := z.EncodeAll(p, packed.AvailableBuffer())
	out.Grow(len(frame) + len(frame)>>10 + 4<<10) // with a tag of 16 bytes for each 64 KiB, and the header
	w, err := age.Encrypt(out, to...)
	if err == nil {
		_, err = w.Write(frame)
	}
	if err == nil {
		err = w.Close()
	}
	return errs.Wrap(errs.Internal, "seal", err)
}

// open decrypts what seal returned. All of it is checked before any of it is returned.
func open(sealed []byte, ids []age.Identity) ([]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(sealed), ids...)
	if wrong := new(age.NoIdentityMatchError); errors.As(err, &wrong) {
		return nil, errs.New(errs.Denied, "", "the identity is not one that this is sealed for").
			WithHint("use the identity of the remote's recipient; where the recipients were replaced, put the old and the new identity into one file")
	}
	var packed []byte
	if err == nil {
		packed, err = io.ReadAll(r)
	}
	var p []byte
	if err == nil {
		p, err = decoder.DecodeAll(packed, nil)
	}
	if err != nil {
		return nil, &errs.Error{Kind: errs.Corrupt, Message: "the object is damaged", Err: err}
	}
	return p, nil
}
