package refdoc

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/dustin/go-humanize"

	"mulligan/tomlfile"
)

// Key says what a key of a TOML file is.
type Key struct {
	Doc     string // what it means, in Markdown
	Type    string // where the Go type doesn't tell
	Default string // where the struct of defaults doesn't tell
}

// Keys returns Markdown tables of the keys of a TOML file, one for each of the file's tables, in
// the order of the fields of the struct defaults. docs maps dotted names to descriptions; the test
// fails if a key has no description or a description no key. heads holds the text above each
// table.
func Keys(t testing.TB, defaults any, docs map[string]Key, heads map[string]string) string {
	t.Helper()
	w := &keyWriter{t: t, docs: docs, heads: heads, seen: map[string]bool{}}
	w.table("", reflect.ValueOf(defaults))
	for name := range docs {
		if !w.seen[name] {
			t.Errorf("%s is described, and is no key", name)
		}
	}
	return w.String()
}

type keyWriter struct {
	strings.Builder
	t     testing.TB
	docs  map[string]Key
	heads map[string]string
	seen  map[string]bool
}

func (w *keyWriter) table(name string, v reflect.Value) {
	head, ok := w.heads[name]
	if !ok {
		w.t.Errorf("table %q has no heading", name)
	}
	fmt.Fprintf(w, "%s\n\n| key | type | default | what it is |\n| --- | --- | --- | --- |\n", head)
	var below []int
	for i := range v.NumField() {
		if _, is := tableOf(v.Field(i)); is {
			below = append(below, i)
			continue
		}
		w.key(name, v.Type().Field(i), v.Field(i))
	}
	w.WriteString("\n")
	for _, i := range below {
		inner, _ := tableOf(v.Field(i))
		w.table(v.Type().Field(i).Tag.Get("toml"), inner)
	}
}

func (w *keyWriter) key(table string, f reflect.StructField, v reflect.Value) {
	name := f.Tag.Get("toml")
	full := strings.TrimPrefix(table+"."+name, ".")
	doc, ok := w.docs[full]
	if !ok {
		w.t.Errorf("nothing says what %s is", full)
	}
	w.seen[full] = true
	if doc.Type == "" {
		doc.Type = typeOf(f.Type)
	}
	if doc.Default == "" {
		doc.Default = defaultOf(v)
	}
	fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", name, doc.Type, Cell(doc.Default), Cell(doc.Doc))
}

// tableOf is the struct that a field holds, points to or lists, unless that is a value.
func tableOf(v reflect.Value) (reflect.Value, bool) {
	t := v.Type()
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[tomlfile.Size]() {
		return reflect.Value{}, false
	}
	if v.Kind() == reflect.Struct {
		return v, true
	}
	return reflect.New(t).Elem(), true
}

func typeOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[tomlfile.Size]():
		return "size"
	case t.Kind() == reflect.Slice:
		return "texts"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "text"
	}
	return "number"
}

func defaultOf(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case tomlfile.Size:
		if value.Bytes == 0 {
			return "`0`"
		}
		return fmt.Sprintf("`%q`", strings.NewReplacer(".0", "", " ", "").Replace(humanize.IBytes(uint64(value.Bytes))))
	case string:
		if value != "" {
			return fmt.Sprintf("`%q`", value)
		}
	case []string:
	default:
		return fmt.Sprintf("`%v`", value)
	}
	return "none"
}
