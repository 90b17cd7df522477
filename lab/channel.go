package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/plimsoll-dev/plimsoll/lab/wire"
)

// A channel runs commands in one guest.
type channel struct{ http *http.ClientConn }

// newChannel waits until the guest is ready. It then owns conn. hasMemory gets the guest's memory by node; if it
// returns an error, newChannel does too.
func newChannel(ctx context.Context, conn net.Conn, hasMemory func([]int64) error) (*channel, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	lines := bufio.NewReader(conn)
	for ready := false; !ready; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil, fmt.Errorf("wait for the guest: %w", errors.Join(err, context.Cause(ctx)))
		}
		var stage wire.Stage
		if err := json.Unmarshal(line, &stage); err != nil {
			return nil, fmt.Errorf("wait for the guest: unexpected message %.80q: %w", line, err)
		}
		if stage.Memory != nil {
			if err := hasMemory(stage.Memory); err != nil {
				return nil, err
			}
		}
		if stage.Failed != "" {
			return nil, fmt.Errorf("the guest could not start: %s", stage.Failed)
		}
		ready = stage.Ready
	}
	rest := &rewound{conn, lines}
	transport := &http.Transport{
		Protocols:   new(http.Protocols),
		DialContext: func(context.Context, string, string) (net.Conn, error) { return rest, nil },
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	client, err := transport.NewClientConn(ctx, "http", "guest:80")
	if err != nil {
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
	return &channel{client}, nil
}

// rewound is a connection from which something has already been read.
type rewound struct {
	net.Conn
	from io.Reader
}

func (r *rewound) Read(p []byte) (int, error) { return r.from.Read(p) }

// A Command is a program to run in a guest. Its environment is the guest's, with a PATH to our binaries and the
// system's.
type Command struct {
	Args   []string
	Env    []string  // further variables, NAME=value
	Dir    string    // empty: /
	Stdin  io.Reader // nil: empty
	Stdout io.Writer // nil: dropped
	Stderr io.Writer // nil: its end is part of the error
}

// ExitError is the error of a command that failed in a guest.
type ExitError struct {
	Args   []string
	Exit   wire.Exit
	Stderr string // its end, if Command.Stderr is nil
}

func (e *ExitError) Error() string {
	how := fmt.Sprintf("exit status %d", e.Exit.Code)
	switch {
	case e.Exit.Error != "":
		how = e.Exit.Error
	case e.Exit.Signal != 0:
		how = fmt.Sprintf("killed by signal %d", e.Exit.Signal)
	}
	if e.Stderr != "" {
		how += ": " + strings.TrimSpace(e.Stderr)
	}
	return fmt.Sprintf("run in the guest: %s: %s", strings.Join(e.Args, " "), how)
}

// exec runs a command until it ends; it is killed when ctx ends.
func (c *channel) exec(ctx context.Context, command Command) error {
	what, err := json.Marshal(wire.Exec{Args: command.Args, Env: command.Env, Dir: command.Dir})
	if err != nil {
		return err
	}
	body := io.Reader(bytes.NewReader(append(what, '\n')))
	if command.Stdin != nil {
		// The pipe can be closed while a reader waits: otherwise the command would not end before the user types
		// something.
		in, typed := io.Pipe()
		go func() {
			_, err := io.Copy(typed, command.Stdin)
			typed.CloseWithError(err)
		}()
		body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(body, in), in}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest"+wire.PathExec, body)
	if err != nil {
		return err
	}
	answer, err := c.http.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("run in the guest: %s: %w", strings.Join(command.Args, " "), err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		complaint, err := io.ReadAll(answer.Body)
		return errors.Join(fmt.Errorf("run in the guest: %s: %s", strings.Join(command.Args, " "), complaint), err)
	}
	stderr, kept := command.Stderr, (*tail)(nil)
	if stderr == nil {
		kept = &tail{max: stderrKept}
		stderr = kept
	}
	exit, err := wire.ReadFrames(answer.Body, command.Stdout, stderr)
	if err != nil {
		return fmt.Errorf("run in the guest: %s: %w", strings.Join(command.Args, " "), errors.Join(err, context.Cause(ctx)))
	}
	if exit != (wire.Exit{}) {
		return &ExitError{command.Args, exit, kept.String()}
	}
	return nil
}

// stderrKept is how much of a command's standard error is part of its error (chosen: a screen).
const stderrKept = 4 << 10
