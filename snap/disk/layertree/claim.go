package layertree

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Claim is the set of images on the host that belong to a domain's disks.
type Claim struct {
	Domain string
	Own    []string // the present disks and the layers below: no other domain may write to them, or use them as backing files
	Under  []string // backing files that others made: several domains may share them
}

// OnCeph begins the names of images in claims that are not on the host: "rbd:", the image's name, and its id.
const OnCeph = "rbd:"

// ClaimOf returns the claim of all images in the tree.
func ClaimOf(t *Tree) *Claim {
	c := &Claim{Domain: t.Domain}
	for _, l := range t.Layers {
		for _, f := range l.Files {
			if l.Borrowed {
				c.Under = append(c.Under, f.Path)
			} else {
				c.Own = append(c.Own, f.Path)
			}
		}
		for _, list := range l.Below {
			for _, f := range list {
				c.Under = append(c.Under, f.Path)
			}
		}
	}
	return c
}

// Clash returns the path of an image that c and o cannot both have; "" means none. Images on the host are compared by device and
// inode, not by name.
func (c Claim) Clash(o Claim) string {
	for _, two := range [][2][]string{{c.Own, o.Own}, {c.Own, o.Under}, {c.Under, o.Own}} {
		if path := common(two[0], two[1]); path != "" {
			return path
		}
	}
	return ""
}

func common(a, b []string) string {
	var there []os.FileInfo
	for _, path := range b {
		if fi, err := os.Stat(path); err == nil {
			there = append(there, fi)
		}
	}
	for _, path := range a {
		if name, ok := strings.CutPrefix(path, OnCeph); ok && slices.Contains(b, path) {
			return name
		}
		fi, err := os.Stat(path)
		if err != nil {
			continue
		}
		for _, other := range there {
			if os.SameFile(fi, other) {
				return filepath.Clean(path)
			}
		}
	}
	return ""
}
