package containerruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

// A Mirror is asked for a registry's images before the registry itself.
type Mirror struct {
	Registry string // host or host:port, such as docker.io; allRegistries: all registries without a mirror of their own
	URL      string // http:// or https://
}

// allRegistries is the name of the directory that containerd reads for registries without one of their own
// (containerd/docs/hosts.md).
const allRegistries = "_default"

// registryPattern is a host with or without a port. It is also the name of a directory.
var registryPattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]{1,5})?$`)

// ParseMirror reads REGISTRY=URL, or a URL alone, which is a mirror of all registries.
func ParseMirror(text string) (Mirror, error) {
	m := Mirror{Registry: allRegistries, URL: text}
	if registry, address, found := strings.Cut(text, "="); found && !strings.Contains(registry, "://") {
		if !registryPattern.MatchString(registry) {
			return m, fmt.Errorf("registry %q: want a host such as docker.io or registry.example:5000", registry)
		}
		m = Mirror{Registry: registry, URL: address}
	}
	u, err := url.Parse(m.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" ||
		u.User != nil {
		return m, fmt.Errorf("URL %q: want [REGISTRY=]http[s]://HOST[:PORT][/PATH], without user and query", m.URL)
	}
	return m, nil
}

// ourMark is the first line of the files that plimsoll writes. Files without it belong to the user.
const ourMark = "# Written by plimsoll up --registry-mirror at every start: edits are lost.\n"

// hostsFile returns the text of the hosts.toml of a registry with these mirrors (containerd/docs/hosts.md).
func hostsFile(mirrors []Mirror) string {
	t := &toml{}
	t.WriteString(ourMark)
	for _, m := range mirrors {
		t.table(0, "host", quoteTOML(m.URL))
		t.set(1, "capabilities", []string{"pull", "resolve"})
	}
	return t.String()
}

// prepareMirrors writes the files of the mirrors, and removes ours that are no longer wanted. The runtime reads them at
// each pull.
func (i *Instance) prepareMirrors() error {
	by := map[string][]Mirror{}
	for _, m := range i.options.Mirrors {
		by[m.Registry] = append(by[m.Registry], m)
	}
	entries, err := os.ReadDir(i.options.registriesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		path := i.options.hostsPath(entry.Name())
		if ours, err := isOurs(path); err != nil {
			return err
		} else if ours && by[entry.Name()] == nil {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	for registry, mirrors := range by {
		path := i.options.hostsPath(registry)
		if ours, err := isOurs(path); err != nil {
			return err
		} else if _, err := os.Lstat(path); !ours && err == nil {
			return fmt.Errorf("set the mirror of registry %s: %s was not written by plimsoll: add %s to it, or remove it",
				registry, path, mirrors[0].URL)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if _, err := durable.WriteIfChanged(path, []byte(hostsFile(mirrors))); err != nil {
			return err
		}
	}
	return nil
}

// isOurs reports whether a file exists and was written by prepareMirrors.
func isOurs(path string) (bool, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return strings.HasPrefix(string(text), ourMark), err
}
