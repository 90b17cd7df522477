package kubelethash

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
)

// writer writes a value's text. names returns upstream's name of a defined type; empty: the type's own. fields returns
// a struct's fields as upstream's type has them; nil: they are the same.
type writer struct {
	names  func(reflect.Type) string
	fields func(reflect.Value) []field
	text   []byte
}

type field struct {
	name  string
	value reflect.Value
}

func (w *writer) add(s string) { w.text = append(w.text, s...) }

// write writes one value, with its type where typed is true: elements of lists and maps, and what a pointer points to,
// have none.
func (w *writer) write(v reflect.Value, typed bool) {
	if v.Kind() == reflect.Pointer {
		w.pointer(v, typed)
		return
	}
	if typed {
		w.add("(" + w.typeName(v.Type()) + ")")
	}
	switch v.Kind() {
	case reflect.Bool:
		w.text = strconv.AppendBool(w.text, v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		w.text = strconv.AppendInt(w.text, v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		w.text = strconv.AppendUint(w.text, v.Uint(), 10)
	case reflect.String:
		w.add(v.String())
	case reflect.Slice, reflect.Array:
		w.list(v)
	case reflect.Map:
		w.table(v)
	case reflect.Struct:
		w.structure(v)
	default:
		panic("kubelethash: nothing in a pod or a checkpoint is a " + v.Kind().String())
	}
}

func (w *writer) pointer(v reflect.Value, typed bool) {
	switch {
	case v.IsNil() && typed:
		w.add("(" + w.typeName(v.Type()) + ")<nil>")
		return
	case v.IsNil():
		w.add("<nil>")
		return
	case typed:
		w.add("(" + w.typeName(v.Type()) + ")")
	default:
		w.add("<*>")
	}
	w.write(v.Elem(), false)
}

func (w *writer) list(v reflect.Value) {
	if v.Kind() == reflect.Slice && v.IsNil() {
		w.add("<nil>")
		return
	}
	w.add("[")
	for i := range v.Len() {
		if i > 0 {
			w.add(" ")
		}
		w.write(v.Index(i), false)
	}
	w.add("]")
}

// table writes a map in the order of its keys.
func (w *writer) table(v reflect.Value) {
	if v.IsNil() {
		w.add("<nil>")
		return
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int {
		if a.Kind() == reflect.String {
			return cmp.Compare(a.String(), b.String())
		}
		return cmp.Compare(a.Int(), b.Int())
	})
	w.add("map[")
	for i, key := range keys {
		if i > 0 {
			w.add(" ")
		}
		w.write(key, false)
		w.add(":")
		w.write(v.MapIndex(key), false)
	}
	w.add("]")
}

func (w *writer) structure(v reflect.Value) {
	var fields []field
	if w.fields != nil {
		fields = w.fields(v)
	}
	if fields == nil {
		for i := range v.NumField() {
			fields = append(fields, field{v.Type().Field(i).Name, v.Field(i)})
		}
	}
	w.add("{")
	for i, f := range fields {
		if i > 0 {
			w.add(" ")
		}
		w.add(f.name + ":")
		w.write(f.value, true)
	}
	w.add("}")
}

// typeName returns upstream's name of a type, as reflect spells it.
func (w *writer) typeName(t reflect.Type) string {
	if t.Name() != "" {
		return cmp.Or(w.names(t), t.String())
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + w.typeName(t.Elem())
	case reflect.Slice:
		return "[]" + w.typeName(t.Elem())
	case reflect.Map:
		return "map[" + w.typeName(t.Key()) + "]" + w.typeName(t.Elem())
	}
	return t.String()
}
