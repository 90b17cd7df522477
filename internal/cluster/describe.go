package cluster

import (
	"context"
	"fmt"
	"io"
)

// Describe shows what a user wants to know of a cluster that has come up: its node's load line, the running pods, and
// what to try next.
func Describe(ctx context.Context, w io.Writer, o Options) error {
	s, err := ReadStatus(ctx, o)
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	return s.Print(w)
}
