package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// monitor is a client of QMP, QEMU's machine protocol (docs/interop/qmp-spec.txt): one JSON object per message, answers
// in the order of the commands, events in between.
type monitor struct {
	conn  io.ReadWriteCloser
	onEnd func(reason string) // called for the SHUTDOWN event, with the reason

	mu      sync.Mutex // held during a command: one at a time
	answers chan message
}

type message struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
	Data  struct {
		Reason string `json:"reason"`
	} `json:"data"`
}

// newMonitor starts the protocol. It ends when QEMU ends or conn is closed.
func newMonitor(conn io.ReadWriteCloser, onEnd func(string)) (*monitor, error) {
	m := &monitor{conn: conn, onEnd: onEnd, answers: make(chan message, 1)}
	messages := json.NewDecoder(conn)
	var greeting struct{ QMP json.RawMessage }
	if err := messages.Decode(&greeting); err != nil || greeting.QMP == nil {
		return nil, fmt.Errorf("wait for QEMU's greeting: %w", errors.Join(err, errNoGreeting))
	}
	go m.listen(messages)
	return m, m.do("qmp_capabilities", nil, nil)
}

var errNoGreeting = errors.New("no QMP greeting from QEMU")

func (m *monitor) listen(messages *json.Decoder) {
	defer close(m.answers)
	for {
		var next message
		if messages.Decode(&next) != nil {
			return // QEMU has ended; closing answers ends a waiting command
		}
		switch {
		case next.Event == "SHUTDOWN":
			m.onEnd(next.Data.Reason)
		case next.Event == "":
			m.answers <- next
		}
	}
}

// do runs a command and decodes its answer into result, if that is not nil.
func (m *monitor) do(command string, arguments map[string]any, result any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(m.conn).Encode(request); err != nil {
		return fmt.Errorf("send QEMU %s: %w", command, err)
	}
	answer, ok := <-m.answers
	switch {
	case !ok:
		return fmt.Errorf("send QEMU %s: QEMU has ended", command)
	case answer.Error != nil:
		return fmt.Errorf("send QEMU %s %v: %s", command, arguments, answer.Error.Desc)
	case result != nil:
		return json.Unmarshal(answer.Return, result)
	}
	return nil
}

// human runs a command of the human monitor; output of it is an error.
func (m *monitor) human(line string) error {
	var said string
	if err := m.do("human-monitor-command", map[string]any{"command-line": line}, &said); err != nil {
		return err
	}
	if said != "" {
		return fmt.Errorf("send QEMU %s: %s", line, said)
	}
	return nil
}
