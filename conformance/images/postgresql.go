package main

import (
	"path/filepath"

	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// postgreSQL is the name of the image of a database, which tests of ours run. Its tag is Debian 12's major version.
const postgreSQL = "plimsoll.dev/postgresql:15"

// postgresUser is the user of the image: initdb and the server refuse to run as root, and want a user with a name.
const postgresUser = "999"

// postgresql returns the image of Debian's PostgreSQL: server, psql, pgbench, pg_amcheck, and a shell, which initdb
// needs. SIGINT is the server's fast shutdown; the default, SIGTERM, waits until all clients have gone.
func (s sources) postgresql() ([]image, error) {
	l := newLayer()
	l.tree(filepath.Join(s.debian, "postgresql"))
	l.base()
	l.link("bin/sh", "dash")
	l.text("etc/passwd", users+"postgres:x:"+postgresUser+":"+postgresUser+"::/tmp:/bin/sh\n")
	l.text("etc/group", groups+"postgres:x:"+postgresUser+":\n")
	only, err := l.blob()
	if err != nil {
		return nil, err
	}
	i, err := newImage([]string{postgreSQL}, oci.ImageConfig{
		Env:        []string{"PATH=/usr/lib/postgresql/15/bin:/usr/bin:/bin"},
		User:       postgresUser,
		StopSignal: "SIGINT",
		Cmd:        []string{"postgres"},
	}, only)
	return []image{i}, err
}
