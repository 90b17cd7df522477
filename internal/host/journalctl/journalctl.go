// Package journalctl reads what services of systemd have logged, by the program journalctl(1).
//
// Arguments are passed as they are, without a shell. The caller checks the names of units (CheckUnit) and bounds the
// time by a context.
//
// It follows no log, and knows nothing of who may read it.
package journalctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// program is looked up in PATH.
const program = "journalctl"

// Query says which entries are wanted. The zero value of a field: all.
type Query struct {
	Units        []string
	Since, Until time.Time
	Lines        *int   // at most that many, the last ones
	Boot         *int   // 0: this boot, -1: the one before, ...
	Grep         string // a PCRE2 pattern that the message matches
}

// unitMax is the longest name of a unit, in bytes (systemd.unit(5)).
const unitMax = 256

var otherThanUnit = regexp.MustCompile(`[^a-zA-Z\-_.:0-9@]`)

// CheckUnit returns an error if name cannot be the name of a unit.
func CheckUnit(name string) error {
	switch {
	case name == "" || len(name) > unitMax:
		return fmt.Errorf("length must be from 1 to %d", unitMax)
	case otherThanUnit.MatchString(name):
		return errors.New("input contains unsupported characters")
	}
	return nil
}

// Services returns those of the names, without .service, that have entries.
func Services(ctx context.Context, names []string) ([]string, error) {
	out, err := exec.CommandContext(ctx, program, "--no-pager", "--field=_SYSTEMD_UNIT").Output()
	if err != nil {
		return nil, explain(err)
	}
	units := strings.Fields(string(out))
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !slices.Contains(units, strings.TrimSuffix(name, ".service")+".service")
	}), nil
}

// Copy writes the entries to w, one on each line, with times in UTC.
func Copy(ctx context.Context, w io.Writer, q Query) error {
	c := exec.CommandContext(ctx, program, q.args()...)
	var problem bytes.Buffer
	c.Stdout, c.Stderr = w, &problem
	err := c.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		exit.Stderr = problem.Bytes()
		if exit.ExitCode() == 1 && problem.Len() == 0 {
			return nil // no entry matches a pattern
		}
	}
	return explain(err)
}

// args returns the arguments of the program.
func (q Query) args() []string {
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	const layout = "2006-01-02 15:04:05 UTC"
	if !q.Since.IsZero() {
		args = append(args, "--since="+q.Since.UTC().Format(layout))
	}
	if !q.Until.IsZero() {
		args = append(args, "--until="+q.Until.UTC().Format(layout))
	}
	if q.Lines != nil {
		args = append(args, "--lines="+strconv.Itoa(*q.Lines))
	}
	if q.Boot != nil {
		args = append(args, "--boot="+strconv.Itoa(*q.Boot))
	}
	for _, unit := range q.Units {
		args = append(args, "--unit="+unit)
	}
	if q.Grep != "" {
		args = append(args, "--grep="+q.Grep)
	}
	return args
}

// explain adds what the program says to its error.
func explain(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Errorf("%s: %w: %.500s", program, err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
