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

// profileSeconds is how long one CPU profile is. What ends before its end is lost, and `go tool pprof` takes many at
// once.
const profileSeconds = 2

// Names of the programs.
const (
	apiServer = "apiserver"
	scheduler = "scheduler"
)

// profiles are CPU profiles and metrics of programs that serve them, kept in a directory while a workload is played.
// Taking them costs those programs time and memory: such a run is not for the record.
type profiles struct {
	dir    string
	client *http.Client
	of     map[string]string // address of each, by name
	end    context.CancelFunc
	group  sync.WaitGroup
}

// profile begins to take profiles of our scheduler, if it is that, and is to keep metrics; without --profile nothing.
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
		config.CAData, config.CAFile, config.Insecure = nil, "", true // its certificate is its own
	}
	if p.client, err = rest.HTTPClientFor(config); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, err
	}
	ctx, p.end = context.WithCancel(ctx)
	if side == ours { // the API server of plimsoll up serves metrics, and no profiles
		p.group.Go(func() { p.follow(ctx, scheduler) })
	}
	return p, nil
}

// follow takes one CPU profile after the other until ctx ends; a program that has just been started does not answer
// yet.
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

// profilePort is where our scheduler serves profiles.
func (r *rig) profilePort() int { return r.port + 1 }

// stop ends that, and keeps what the programs have counted.
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

// fetch keeps what a program answers.
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
