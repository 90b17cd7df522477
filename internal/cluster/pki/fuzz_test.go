package pki

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// FuzzReadFiles: reading a file with a key or a certificate succeeds or returns an error that names the file, at a cost
// in proportion to its length: a file without end markers is not searched again and again.
func FuzzReadFiles(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "pki")
	plan := smallPlan()
	if _, err := Ensure(dir, plan, time.Now()); err != nil {
		f.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		f.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		cost.Attack(f, text)
	}
	cost.Attack(f, []byte("-----BEGIN CERTIFICATE-----\n"))
	path := filepath.Join(f.TempDir(), "read.pem")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		defer cost.Spend(t, len(text))()
		if key, err := readKey(path); (key == nil) == (err == nil) {
			t.Errorf("key %v, %v", key, err)
		}
		if cert, err := readCert(path); (cert == nil) == (err == nil) {
			t.Errorf("certificate %v, %v", cert != nil, err)
		}
	})
}
