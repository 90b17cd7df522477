package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// profileSeconds is the length of one CPU profile. A profile that is not complete at the end is lost. `go tool pprof`
// reads many files at once.
const profileSeconds = 2

// Names of the programs, in file names.
const (
	apiServer = "apiserver"
	scheduler = "scheduler"
)

// profiles takes CPU profiles and metrics of programs that serve them, and keeps them in a directory, while a workload
// runs. That costs those programs time and memory, so results of such a run must not be recorded.
type profiles struct {
	dir    string
	client *http.Client
	of     map[string]string // address of each program, by name
	end    context.CancelFunc
	group  sync.WaitGroup
}

// profile begins to take profiles, if side is our scheduler and --profile is set, and keeps metrics at the end.
func (r *rig) profile(ctx context.Context, side, title string) (*profiles, error) {
	if r.profiles == "" {
		return nil, nil
	}
	config, err := r.plane.Config()
	if err != nil {
		return nil, err
	}
	p := &profiles{
		dir: filepath.Join(r.profiles, filepath.Clean("/"+title), side),
		of:  map[string]string{apiServer: config.Host},
	}
	if side == ours {
		p.of[scheduler] = "https://127.0.0.1:" + strconv.Itoa(r.profilePort())
		config.CAData = nil
		config.CAFile = ""
		config.Insecure = true // the scheduler's certificate is self-signed
	}
	if p.client, err = rest.HTTPClientFor(config); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, err
	}
	ctx, p.end = context.WithCancel(ctx)
	if side == ours { // the API server of plimsoll up serves metrics, but no profiles
		p.group.Go(func() { p.follow(ctx, scheduler) })
	}
	return p, nil
}

// follow takes CPU profiles until ctx ends. A program that was just started may not answer yet.
func (p *profiles) follow(ctx context.Context, name string) {
	for i := 0; ctx.Err() == nil; i++ {
		path := fmt.Sprintf("/debug/pprof/profile?seconds=%d", profileSeconds)
		err := p.fetch(ctx, name, path, fmt.Sprintf("%s-%03d.pprof", name, i))
		if err == nil || ctx.Err() != nil {
			continue
		}
		record.Progress("profile: %v", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// profilePort is the port on which our scheduler serves profiles.
func (r *rig) profilePort() int { return r.port + 1 }

// stop ends the profiles, and keeps the metrics of the programs.
func (p *profiles) stop(ctx context.Context) error {
	if p == nil {
		return nil
	}
	p.end()
	p.group.Wait()
	var errs []error
	for name := range p.of {
		errs = append(errs, p.fetch(ctx, name, "/metrics", name+".metrics"))
	}
	return errors.Join(errs...)
}

// fetch writes what a program answers to a file.
func (p *profiles) fetch(ctx context.Context, name, path, file string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.of[name]+path, nil)
	if err != nil {
		return err
	}
	answer, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s of %s: %s: %.200s", path, name, answer.Status, text)
	}
	return os.WriteFile(filepath.Join(p.dir, file), text, 0o644)
}
