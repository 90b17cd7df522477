package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/plimsoll-dev/plimsoll/bench/plane"
)

// This file puts upstream's programs in the places of ours. `up` starts the kubelet (--agent-binary) and
// kube-controller-manager (--controlplane-binary names a script that changes one of its flags). It cannot start another
// scheduler, so this program does, when `up` would start ours: when the control plane has its first objects.

// ownLifecycle is the part of kube-controller-manager's flag --controllers with which `up` leaves out the two
// controllers that our lifecycle controller replaces.
const ownLifecycle = ",-node-lifecycle-controller,-taint-eviction-controller"

// controllersScript returns a script that runs a program in its place with the same arguments, but with upstream's two
// controllers. It fails if kube-controller-manager's arguments are not those that it knows: otherwise no controller
// would monitor the node, and the comparison would be false.
func controllersScript(program string) string {
	return fmt.Sprintf(`#!/bin/sh
if [ "$1" = kube-controller-manager ]; then
	found=
	for word; do
		shift
		case $word in
		--controllers='*'%[1]s*)
			found=1
			word="--controllers=*${word#--controllers='*'%[1]s}" ;;
		esac
		set -- "$@" "$word"
	done
	if [ -z "$found" ]; then
		echo "no flag --controllers=*%[1]s among: $*" >&2
		exit 1
	fi
fi
exec %[2]s "$@"
`, ownLifecycle, quote(program))
}

// quote returns a word of the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// upstreamFlags writes the script and returns the flags with which `up` runs upstream's programs.
func (s *subject) upstreamFlags() ([]string, error) {
	script := filepath.Join(s.dir, "controlplane")
	if err := os.WriteFile(script, []byte(controllersScript(s.controlplane)), 0o700); err != nil {
		return nil, err
	}
	return []string{"--no-scheduler", "--no-lifecycle", "--agent-binary", s.kubelet, "--controlplane-binary", script}, nil
}

// startScheduler starts upstream's kube-scheduler with its own defaults.
func (s *subject) startScheduler() (err error) {
	p := plane.Plane{Plimsoll: s.plimsoll, Instance: instance, Dir: s.dir}
	s.kubeScheduler, err = p.KubeScheduler(filepath.Join(s.dir, "kube-scheduler.log"), s.scheduler, true)
	return err
}

// stopScheduler stops upstream's kube-scheduler, if it runs.
func (s *subject) stopScheduler() error {
	if s.kubeScheduler == nil {
		return nil
	}
	err := s.kubeScheduler.Stop()
	s.kubeScheduler = nil
	return err
}

// checkUpstream returns an error if a program of ours runs where upstream's should, or the other way round.
func (s *subject) checkUpstream(all status) error {
	var errs []error
	for _, c := range all.Children {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.PID))
		words := strings.ReplaceAll(string(text), "\x00", " ")
		ours := false
		switch roleOf(c.Name) {
		case roleAgent:
			ours = !strings.HasPrefix(words, s.kubelet+" ")
		case roleControllers:
			ours = strings.Contains(words, ownLifecycle)
		case roleScheduler, roleLifecycle:
			ours = true
		default:
			continue
		}
		if err != nil || ours == s.upstream {
			errs = append(errs, errors.Join(err, fmt.Errorf("%s is %q", c.Name, words)))
		}
	}
	if s.kubeScheduler != nil {
		errs = append(errs, s.kubeScheduler.Check())
	}
	return errors.Join(errs...)
}
