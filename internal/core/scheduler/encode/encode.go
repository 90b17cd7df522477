// Package encode writes values as bytes that no other values give: what is equal has equal keys, and only that. A map
// by such a key finds what was made of the same before.
//
// Each function appends one value to b. Values are told apart by their order, so whoever writes a struct writes its
// fields in one order always, and of a list first how long it is.
package encode

import "encoding/binary"

// Number writes n.
func Number(b []byte, n int64) []byte { return binary.AppendVarint(b, n) }

// String writes s.
func String(b []byte, s string) []byte { return append(Number(b, int64(len(s))), s...) }

// Strings writes a list of strings.
func Strings(b []byte, list []string) []byte {
	b = Number(b, int64(len(list)))
	for _, s := range list {
		b = String(b, s)
	}
	return b
}

// Bool writes x.
func Bool(b []byte, x bool) []byte {
	if x {
		return append(b, 1)
	}
	return append(b, 0)
}
