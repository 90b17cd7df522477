// Package encode writes values as bytes, for use as keys of maps. Equal values give equal bytes, and different values
// give different bytes.
//
// Each function appends one value to b. The bytes do not say what follows. So code that writes a struct must always
// write its fields in the same order, and code that writes a list must write its length first.
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
