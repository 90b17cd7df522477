package unit

import (
	"fmt"
	"strconv"
)

// Amount is a quantity that may be absent. A stated zero is different from an absent amount. The zero Amount is absent.
type Amount[T ~int64] struct {
	value T
	set   bool
}

// Of returns a stated amount.
func Of[T ~int64](v T) Amount[T] { return Amount[T]{v, true} }

// Get returns the amount and whether it was stated.
func (a Amount[T]) Get() (T, bool) { return a.value, a.set }

// IsSet reports whether a was stated.
func (a Amount[T]) IsSet() bool { return a.set }

// OrZero returns the amount, or zero when absent.
func (a Amount[T]) OrZero() T { return a.value }

// Plus returns the sum. The sum is stated if either amount is.
func (a Amount[T]) Plus(b Amount[T]) Amount[T] { return Amount[T]{a.value + b.value, a.set || b.set} }

// Max returns the larger amount. A stated amount is larger than an absent one.
func (a Amount[T]) Max(b Amount[T]) Amount[T] {
	if b.set && (!a.set || b.value > a.value) {
		return b
	}
	return a
}

// String prints the amount, or "absent".
func (a Amount[T]) String() string {
	if !a.set {
		return "absent"
	}
	return fmt.Sprint(a.value)
}

// Limit is an upper bound to write. The zero Limit changes nothing: the present bound is kept. Unlimited removes the
// bound. A bound of zero means that nothing may be used.
type Limit[T ~int64] struct {
	value T
	kind  limitKind
}

type limitKind uint8

const (
	limitKept limitKind = iota // zero Limit
	limitNone
	limitSet
)

// LimitTo returns the bound v.
func LimitTo[T ~int64](v T) Limit[T] { return Limit[T]{v, limitSet} }

// Unlimited returns a Limit that removes the bound.
func Unlimited[T ~int64]() Limit[T] { return Limit[T]{0, limitNone} }

// Get returns the bound. It returns false if l is unlimited or kept.
func (l Limit[T]) Get() (T, bool) { return l.value, l.kind == limitSet }

// IsUnlimited reports whether l removes the bound.
func (l Limit[T]) IsUnlimited() bool { return l.kind == limitNone }

// IsKept reports whether l changes nothing.
func (l Limit[T]) IsKept() bool { return l.kind == limitKept }

// String prints the bound, "unlimited" or "kept".
func (l Limit[T]) String() string {
	switch l.kind {
	case limitKept:
		return "kept"
	case limitNone:
		return "unlimited"
	}
	return fmt.Sprint(l.value)
}

// MarshalJSON writes a stated amount as a number, an absent one as null.
func (a Amount[T]) MarshalJSON() ([]byte, error) {
	if !a.set {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, int64(a.value), 10), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (a *Amount[T]) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*a = Amount[T]{}
		return nil
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return fmt.Errorf("read amount: %.40q: want a whole number or null", text)
	}
	*a = Of(T(n))
	return nil
}
