//go:build e2e

package rig

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// explainTimeout bounds how long it may take until an answer has everything. Chosen: Events are written within seconds.
const explainTimeout = time.Minute

// Explains waits until the answer of `plimsoll explain` to a question, such as "pod team/web", has matches of all the
// expressions in want, in any order. A point matches ends of lines, too. flags are those of explain.
func (c *Cluster) Explains(t *testing.T, question string, flags []string, want ...string) {
	t.Helper()
	var text string
	args := append(append(strings.Fields(question), "--kubeconfig", c.Kubeconfig), flags...)
	Eventually(t, explainTimeout, "explain "+question, func(context.Context) (err error) {
		if text, err = c.Plimsoll("explain", args...); err != nil {
			text = err.Error() // of a pod that does not exist, the error says why
		}
		for _, one := range want {
			if !regexp.MustCompile("(?s)" + one).MatchString(text) {
				return fmt.Errorf("%q is not in\n%s", one, text)
			}
		}
		return nil
	})
	t.Logf("explain %s:\n%s", question, text)
}
