package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
)

// The control socket speaks HTTP, so that curl --unix-socket can do what `plimsoll fleet fault` does. Only the owner of
// its file has access.
//
//	POST /fault    body: one order; answers with Obeyed
//	GET  /status   answers with Status
const (
	pathFault  = "/fault"
	pathStatus = "/status"
)

// Obeyed lists the nodes on which an order was executed.
type Obeyed struct {
	Order string   `json:"order"`
	Nodes []string `json:"nodes"`
}

const (
	// orderMax bounds the text of an order, in bytes. Chosen: it may name every node of a fleet.
	orderMax = 8 << 20
	// controlTimeout bounds a request to the socket (chosen). The conductor answers between two decisions.
	controlTimeout = 30 * time.Second
)

// serveControl serves the socket at path until stop is called.
func (f *fleet) serveControl(ctx context.Context, path string) (stop func(), err error) {
	l, err := listenUnix(path)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathFault, func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, orderMax))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		o, err := readOrder(string(text))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var nodes []string
		f.onConductor(r.Context(), func() { nodes, err = f.execute(ctx, o) })
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer(w, Obeyed{o.String(), nodes})
	})
	mux.HandleFunc("GET "+pathStatus, func(w http.ResponseWriter, r *http.Request) {
		var s Status
		f.onConductor(r.Context(), func() { s = f.status() })
		answer(w, s)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: controlTimeout}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			slog.Error("control socket", "path", path, "err", err)
		}
	}()
	slog.Info("fleet accepts orders", "socket", path)
	return func() { _ = server.Close() }, nil // this also removes the socket's file
}

// readOrder reads an order that is to be executed now.
func readOrder(text string) (fault.Order, error) {
	o, err := fault.Parse(strings.TrimSpace(text))
	if err == nil && o.At > 0 {
		err = fmt.Errorf("read fault %q: at %v: a moment is only for --faults: this order is executed at once", text, o.At)
	}
	return o, err
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // best effort: the client may be gone
}

// onConductor runs do on the conductor's goroutine.
func (f *fleet) onConductor(ctx context.Context, do func()) {
	done := make(chan struct{})
	select {
	case f.orders <- func() { do(); close(done) }:
		<-done
	case <-ctx.Done():
	}
}

// listenUnix listens on a socket that only its owner may use. It replaces the file of a socket whose process has ended.
func listenUnix(path string) (net.Listener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("listen on --control %s: another fleet uses it: choose another path", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on --control: remove the socket of an earlier fleet: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("listen on --control: %w", err)
	}
	// The mode must be right from the beginning, which only the umask can ensure.
	before := unix.Umask(0o177)
	defer unix.Umask(before)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on --control: %w", err)
	}
	return l, nil
}

// RefusedError is the error of a fleet that did not execute an order because the order is invalid.
type RefusedError struct{ Reason string }

func (e RefusedError) Error() string { return e.Reason }

// Command sends an order to the fleet with that control socket.
func Command(ctx context.Context, socket, order string) (o Obeyed, err error) {
	if _, err := readOrder(order); err != nil {
		return o, RefusedError{err.Error()}
	}
	err = call(ctx, socket, http.MethodPost, pathFault, strings.NewReader(order), &o)
	return o, err
}

// Look returns the status of the fleet with that control socket.
func Look(ctx context.Context, socket string) (s Status, err error) {
	err = call(ctx, socket, http.MethodGet, pathStatus, nil, &s)
	return s, err
}

func call(ctx context.Context, socket, method, path string, body io.Reader, into any) error {
	client := &http.Client{Timeout: controlTimeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, method, "http://fleet"+path, body)
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("send to the fleet: is one running with --control %s? %w", socket, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("send to the fleet: %w", err)
	case resp.StatusCode != http.StatusOK:
		return RefusedError{string(bytes.TrimSpace(text))}
	}
	return json.Unmarshal(text, into)
}
