// Command release builds what a release consists of: a Debian package for each architecture, a bill of materials and
// checksums.
//
//	release --source .. --out dist --version v0.1.0 --time 1764000000
//
// A package has the program, systemd units for agent, scheduler and lifecycle controller, manual pages, completion for
// three shells, and the manifests of deploy/. The programs of `plimsoll up` are not in it.
//
// The same source, version and time give the same bytes, wherever and whenever they are built: nothing else of the
// machine is an input. Version and time come from the tag and its commit (make release). It publishes nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var o options
	flag.StringVar(&o.source, "source", "..", "root directory of the repository")
	flag.StringVar(&o.out, "out", "", "directory of the results; it is made, and must not exist")
	flag.StringVar(&o.version, "version", "", "the release: a tag, like v0.1.0 or v0.1.0-rc.1")
	seconds := flag.Int64("time", 0, "the time that files in packages have, in seconds since 1970: that of the commit")
	archs := flag.String("arch", "amd64,arm64", "architectures")
	flag.Parse()
	o.time = time.Unix(*seconds, 0).UTC()
	o.archs = strings.Split(*archs, ",")
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(2)
	}
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// options are the inputs.
type options struct {
	source  string
	out     string
	version string
	time    time.Time
	archs   []string
	goEnv   []string // more of the environment of the go tool; tests set it
}

// versions are the tags of releases: semver.org, as far as Debian's versions can be made of it.
var versions = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)` +
	`(-[0-9A-Za-z]+(\.[0-9A-Za-z]+)*)?$`)

// check returns an error that names all wrong options.
func (o options) check() error {
	var problems []error
	if !versions.MatchString(o.version) {
		problems = append(problems, fmt.Errorf("--version %q: want a tag like v0.1.0 or v0.1.0-rc.1", o.version))
	}
	if o.out == "" {
		problems = append(problems, errors.New("--out: required"))
	} else if _, err := os.Lstat(o.out); err == nil {
		problems = append(problems, fmt.Errorf("--out %s: exists already: results of two builds are not mixed", o.out))
	}
	if o.time.Unix() <= 0 {
		problems = append(problems, errors.New("--time: required: git log -1 --format=%ct"))
	}
	for _, arch := range o.archs {
		if arch != "amd64" && arch != "arm64" {
			problems = append(problems, fmt.Errorf("--arch %q: want amd64, arm64", arch))
		}
	}
	return errors.Join(problems...)
}

// run builds everything in a directory beside out, and renames that at the end: out is whole or missing.
func (o options) run(ctx context.Context) error {
	source, err := filepath.Abs(o.source)
	if err != nil {
		return err
	}
	out, err := filepath.Abs(o.out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(out), ".release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	b := build{
		options: o,
		ctx:     ctx,
		source:  source,
		stage:   filepath.Join(work, "stage"),
		results: filepath.Join(work, "results"),
	}
	if err := errors.Join(os.Mkdir(b.stage, 0o755), os.Mkdir(b.results, 0o755)); err != nil {
		return err
	}
	for _, step := range []func() error{
		b.programs, b.manualPages, b.completions, b.texts, b.packages, b.bill, b.checksums,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return os.Rename(b.results, out)
}
