package imageaccess

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/core/imageaccess"
)

func open(t *testing.T, root string) *Records {
	t.Helper()
	r, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// files returns the numbers of files in the two directories.
func files(t *testing.T, root string) (pulling, pulled int) {
	t.Helper()
	for dir, n := range map[string]*int{"pulling": &pulling, "pulled": &pulled} {
		entries, err := os.ReadDir(filepath.Join(root, "image_manager", dir))
		if err != nil {
			t.Fatal(err)
		}
		*n = len(entries)
	}
	return pulling, pulled
}

var alice = &imageaccess.Credentials{Secrets: []imageaccess.Secret{{UID: "1", Namespace: "a", Name: "s", Sum: "00"}},
	Accounts: []imageaccess.Account{{UID: "2", Namespace: "a", Name: "d"}}}

// TestPull: what this process and the next one know of an image before, during and after its pull.
func TestPull(t *testing.T) {
	root := t.TempDir()
	r := open(t, root)
	if q := r.Question("app", "id"); q.Record != nil || q.Intent || q.Unknown {
		t.Errorf("before: %+v", q)
	}
	check(t, r.Begin("app"))
	check(t, r.Begin("app"))
	if q := open(t, root).Question("app", "id"); !q.Intent {
		t.Errorf("an agent that comes meanwhile sees no intent: %+v", q)
	}
	r.Failed("app")
	if q := r.Question("app", "id"); !q.Intent {
		t.Errorf("one of two pulls has failed, and nobody pulls: %+v", q)
	}
	check(t, r.Pulled("app", "id", alice))
	q := open(t, root).Question("app", "id")
	if q.Intent || q.Record == nil || len(q.Record.ByName["app"].Secrets) != 1 ||
		q.Record.ByName["app"].Secrets[0] != alice.Secrets[0] ||
		q.Record.ByName["app"].Accounts[0] != alice.Accounts[0] || q.Record.Updated == 0 {
		t.Errorf("after: %+v", q.Record)
	}
	if pulling, pulled := files(t, root); pulling != 0 || pulled != 1 {
		t.Errorf("%d files of pulls and %d of images", pulling, pulled)
	}
	check(t, r.Learn("app", "id", &imageaccess.Credentials{Everybody: true}))
	if q := r.Question("app", "id"); !q.Record.ByName["app"].Everybody {
		t.Errorf("what was learnt: %+v", q.Record)
	}
}

// TestUpstreamsRecord reads a record that has the name and content of the kubelet's (1.36.3).
func TestUpstreamsRecord(t *testing.T) {
	root := t.TempDir()
	r := open(t, root)
	path := file(r.pulled, "sha256:abc")
	// printf sha256:abc | sha256sum
	if base := filepath.Base(path); base != "sha256-67e9bc3cfd2163c2978358dfe00d2f912cd4ee0c99f077c3583b39b48aebb124" {
		t.Errorf("its name is %s", base)
	}
	const text = `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1","lastUpdatedTime":"2026-11-23T12:00:00Z","imageRef":"sha256:abc",
		"credentialMapping":{"r.io/app":{"kubernetesSecrets":[{"uid":"u","namespace":"n","name":"s","credentialHash":"h"}]},"r.io/open":{"nodePodsAccessible":true}}}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	q := r.Question("r.io/app:1", "sha256:abc")
	if q.Record == nil || q.Record.ByName["r.io/app"].Secrets[0] != (imageaccess.Secret{UID: "u", Namespace: "n",
		Name: "s", Sum: "h"}) || !q.Record.ByName["r.io/open"].Everybody {
		t.Errorf("record %+v", q.Record)
	}
}

// TestRecover: a pull that an earlier agent could not end counts as successful if the runtime has the image; otherwise
// it stays begun.
func TestRecover(t *testing.T) {
	root := t.TempDir()
	r := open(t, root)
	for _, image := range []string{"app", "r.io/there:1", "r.io/never"} {
		check(t, r.Begin(image))
	}
	next := open(t, root)
	check(t, next.Recover([]Image{{ID: "one", Names: []string{"docker.io/library/app:latest"}},
		{ID: "two", Names: []string{"r.io/there:1", "r.io/there@sha256:0"}}}))
	for image, id := range map[string]string{"app": "one", "r.io/there:1": "two"} {
		if q := next.Question(image, id); q.Intent || q.Record == nil || len(q.Record.ByName) != 0 {
			t.Errorf("%s: %+v", image, q)
		}
	}
	if q := next.Question("r.io/never", "three"); !q.Intent || q.Record != nil {
		t.Errorf("an image that never came: %+v", q)
	}
}

// TestPrune: records are removed with their images, except those of a pull that ended meanwhile.
func TestPrune(t *testing.T) {
	root := t.TempDir()
	r := open(t, root)
	before := time.Now()
	for _, id := range []string{"kept", "gone"} {
		check(t, r.Begin(id))
		check(t, r.Pulled(id, id, alice))
	}
	check(t, os.WriteFile(filepath.Join(r.pulled, prefix+"00"+unfinished), nil, 0o600))
	check(t, r.Prune(nil, before))
	if _, pulled := files(t, root); pulled != 2 {
		t.Errorf("%d records, want those two that are younger than the list of images", pulled)
	}
	check(t, r.Prune([]string{"kept"}, time.Now().Add(time.Hour)))
	if q := r.Question("kept", "kept"); q.Record == nil {
		t.Error("a record went before its image")
	}
	if q := r.Question("gone", "gone"); q.Record != nil {
		t.Error("a record stays without its image")
	}
}

// Files are counted: those of pulls, and records without the unfinished files that a crash left.
func TestFilesAreCounted(t *testing.T) {
	r := open(t, t.TempDir())
	check(t, r.Begin("a"))
	check(t, r.Pulled("a", "a", alice))
	check(t, r.Begin("b"))
	check(t, os.WriteFile(filepath.Join(r.pulled, "."+prefix+"00"+unfinished), nil, 0o600))
	registry := prometheus.NewRegistry()
	registry.MustRegister(r)
	families, err := registry.Gather()
	check(t, err)
	if len(families) != 2 {
		t.Fatalf("%d families, want 2", len(families))
	}
	for _, f := range families {
		if got := f.Metric[0].GetGauge().GetValue(); got != 1 {
			t.Errorf("%s is %v, want 1", f.GetName(), got)
		}
	}
}

// TestBadRecords: if a record cannot be read, no pod may use the image, and the next pull writes a new record.
func TestBadRecords(t *testing.T) {
	for name, text := range map[string]string{
		"torn":         `{"kind":"ImagePulledRecord","apiVer`,
		"empty":        "",
		"another kind": `{"kind":"Pod","apiVersion":"v1"}`,
		"of another":   `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","imageRef":"other","credentialMapping":{"app":{"nodePodsAccessible":true}}}`,
		"too long":     strings.Repeat(" ", fileMax+1),
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			r := open(t, root)
			check(t, os.WriteFile(file(r.pulled, "id"), []byte(text), 0o600))
			q := r.Question("app", "id")
			p, err := imageaccess.NewPolicy("NeverVerifyPreloadedImages", nil)
			check(t, err)
			if needs, may := p.NeedsUser(q); !q.Unknown || needs || may {
				t.Errorf("%+v: needs %v, may %v", q, needs, may)
			}
			check(t, r.Begin("app"))
			check(t, r.Pulled("app", "id", alice))
			if q := r.Question("app", "id"); q.Unknown || q.Record == nil {
				t.Errorf("after a pull: %+v", q)
			}
		})
	}
	root := t.TempDir()
	r := open(t, root)
	check(t, os.Mkdir(file(r.pulled, "id"), 0o700))
	if q := r.Question("app", "id"); !q.Unknown {
		t.Errorf("a directory: %+v", q)
	}
}
