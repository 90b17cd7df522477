package main

import (
	"fmt"
	"path/filepath"

	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// nobody is the user of the images whose programs need no name for it.
const nobody = "65534"

// charts returns the images that test/e2e/charts installs besides PostgreSQL: Debian's nginx, Prometheus and
// kube-state-metrics.
func (s sources) charts() ([]image, error) {
	var images []image
	for _, one := range []struct {
		name   string
		fill   func(*layer)
		config oci.ImageConfig
	}{
		{
			name: "plimsoll.dev/test/nginx:1",
			fill: func(l *layer) { l.tree(filepath.Join(s.debian, "nginx")) },
			config: oci.ImageConfig{
				User:       "33", // Debian's www-data
				StopSignal: "SIGQUIT",
				Cmd:        []string{"nginx", "-g", "daemon off;"},
			},
		},
		{
			name: "plimsoll.dev/test/prometheus:dev",
			fill: func(l *layer) { l.file("bin/prometheus", 0o755, filepath.Join(s.monitoring, "prometheus")) },
			config: oci.ImageConfig{
				User:       nobody,
				Entrypoint: []string{"/bin/prometheus"},
			},
		},
		{
			name: "plimsoll.dev/test/kube-state-metrics:dev",
			fill: func(l *layer) {
				l.file("bin/kube-state-metrics", 0o755, filepath.Join(s.monitoring, "kube-state-metrics"))
			},
			config: oci.ImageConfig{
				User:       nobody,
				Entrypoint: []string{"/bin/kube-state-metrics"},
			},
		},
	} {
		l := newLayer()
		one.fill(l)
		l.base()
		only, err := l.blob()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
		i, err := newImage([]string{one.name}, one.config, only)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
		images = append(images, i)
	}
	return images, nil
}

// base adds what every root file system has: directories on which the runtime mounts, users and groups.
func (l *layer) base() {
	for _, name := range []string{"bin", "dev", "etc", "proc", "run", "sys"} {
		l.dir(name, 0o755)
	}
	l.dir("tmp", 0o1777)
	l.text("etc/passwd", users)
	l.text("etc/group", groups)
	l.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
}
