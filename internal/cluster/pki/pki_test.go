package pki

import (
	"crypto/x509"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func smallPlan() Plan {
	return Plan{
		Authorities: []Authority{{Name: "ca", CommonName: "test authority", ManyChecks: true},
			{Name: "other-ca", CommonName: "another"}},
		Leaves: []Leaf{
			{Name: "server", Authority: "ca", CommonName: "server", Server: true, DNSNames: []string{"localhost"},
				IPs: []net.IP{net.IPv4(127, 0, 0, 1)}},
			{Name: "node", Authority: "ca", CommonName: "system:node:a", Organization: "system:nodes", Client: true},
			{Name: "proxy", Authority: "other-ca", CommonName: "proxy", Client: true},
		},
		SigningKeys: []string{"sa"},
	}
}

func ensure(t *testing.T, dir string, plan Plan, now time.Time) []string {
	t.Helper()
	changed, err := Ensure(dir, plan, now)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func newDir(t *testing.T) string { return filepath.Join(t.TempDir(), "pki") }

func mustCert(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	cert, err := readCert(CertPath(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	dir := newDir(t)
	ensure(t, dir, smallPlan(), t0)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if err == nil && info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// If a user made a key readable for others, the next run restores its mode and keeps the key.
	if err := os.Chmod(KeyPath(dir, "node"), 0o644); err != nil {
		t.Fatal(err)
	}
	if changed := ensure(t, dir, smallPlan(), t0); changed != nil {
		t.Errorf("changed %v", changed)
	}
	if info, err := os.Stat(KeyPath(dir, "node")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v after the second run, want 0600", info.Mode(), err)
	}
}

// Each leaf must verify against its own authority, for its own use and name, and for no others.
func TestChains(t *testing.T) {
	dir := newDir(t)
	ensure(t, dir, smallPlan(), t0)
	for _, c := range []struct {
		leaf, authority, dnsName string
		usage                    x509.ExtKeyUsage
		good                     bool
	}{
		{"server", "ca", "localhost", x509.ExtKeyUsageServerAuth, true},
		{"server", "ca", "127.0.0.1", x509.ExtKeyUsageServerAuth, true},
		{"server", "ca", "example.com", x509.ExtKeyUsageServerAuth, false},
		{"server", "ca", "", x509.ExtKeyUsageClientAuth, false},
		{"server", "other-ca", "localhost", x509.ExtKeyUsageServerAuth, false},
		{"node", "ca", "", x509.ExtKeyUsageClientAuth, true},
		{"node", "ca", "", x509.ExtKeyUsageServerAuth, false},
		{"proxy", "other-ca", "", x509.ExtKeyUsageClientAuth, true},
		{"proxy", "ca", "", x509.ExtKeyUsageClientAuth, false},
	} {
		roots := x509.NewCertPool()
		roots.AddCert(mustCert(t, dir, c.authority))
		_, err := mustCert(t, dir, c.leaf).Verify(x509.VerifyOptions{
			Roots: roots, DNSName: c.dnsName, CurrentTime: t0, KeyUsages: []x509.ExtKeyUsage{c.usage}})
		if (err == nil) != c.good {
			t.Errorf("%s by %s as %q for %v: %v, want good %v", c.leaf, c.authority, c.dnsName, c.usage, err, c.good)
		}
	}
	subject := mustCert(t, dir, "node").Subject
	if subject.CommonName != "system:node:a" || !slices.Equal(subject.Organization, []string{"system:nodes"}) {
		t.Errorf("the node is %v", subject)
	}
}

// Files that are right are not touched. Files that are wrong are made again, and no others.
func TestEnsureChangesOnlyWhatIsWrong(t *testing.T) {
	all := []string{"ca", "other-ca", "server", "node", "proxy", "sa"}
	for _, c := range []struct {
		what    string
		spoil   func(t *testing.T, dir string, plan *Plan)
		after   time.Duration
		changed []string
	}{
		{"nothing", func(*testing.T, string, *Plan) {}, 0, nil},
		{"half a year passes", func(*testing.T, string, *Plan) {}, leafLife / 2, nil},
		{"leaves come to their last third", func(*testing.T, string, *Plan) {}, leafLife * 2 / 3, []string{"server", "node",
			"proxy"}},
		{"leaves have expired", func(*testing.T, string, *Plan) {}, leafLife * 2, []string{"server", "node", "proxy"}},
		{"authorities come to their last third", func(*testing.T, string, *Plan) {}, authorityLife * 2 / 3, all[:5]},
		{"the clock steps back a day", func(*testing.T, string, *Plan) {}, -24 * time.Hour, all[:5]},
		{"a certificate is gone", remove("server.crt"), 0, []string{"server"}},
		{"a key is gone", remove("node.key"), 0, []string{"node"}},
		{"a certificate is damaged", overwrite("node.crt"), 0, []string{"node"}},
		{"a key is damaged", overwrite("proxy.key"), 0, []string{"proxy"}},
		{"the server gets another name", func(_ *testing.T, _ string, p *Plan) {
			p.Leaves[0].DNSNames = []string{"localhost",
				"b"}
		}, 0, []string{"server"}},
		{"the server gets another address", func(_ *testing.T, _ string, p *Plan) {
			p.Leaves[0].IPs = []net.IP{net.IPv4(10, 0,
				0, 1)}
		}, 0, []string{"server"}},
		{"a client changes its group", func(_ *testing.T, _ string, p *Plan) { p.Leaves[1].Organization = "" }, 0,
			[]string{"node"}},
		{"a key of another", func(t *testing.T, dir string, _ *Plan) {
			copyFile(t, KeyPath(dir, "proxy"), KeyPath(dir, "node"))
		}, 0, []string{"node"}},
		{"killed between the two halves of the signing key", remove("sa.pub"), 0, []string{"sa"}},
		{"killed between key and certificate of an authority", remove("other-ca.crt"), 0, []string{"other-ca"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir, plan := newDir(t), smallPlan()
			if changed := ensure(t, dir, plan, t0); !slices.Equal(changed, all) {
				t.Fatalf("first run made %v, want %v", changed, all)
			}
			c.spoil(t, dir, &plan)
			now := t0.Add(c.after)
			if changed := ensure(t, dir, plan, now); !slices.Equal(changed, c.changed) {
				t.Errorf("second run changed %v, want %v", changed, c.changed)
			}
			if changed := ensure(t, dir, plan, now); changed != nil {
				t.Errorf("third run changed %v, want nothing", changed)
			}
			for _, l := range plan.Leaves {
				roots := x509.NewCertPool()
				roots.AddCert(mustCert(t, dir, l.Authority))
				if _, err := mustCert(t, dir, l.Name).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now,
					KeyUsages: l.usages()}); err != nil {
					t.Errorf("%s: %v", l.Name, err)
				}
				if key, err := readKey(KeyPath(dir, l.Name)); err != nil || !belong(key, mustCert(t, dir, l.Name)) {
					t.Errorf("%s: key and certificate do not belong together (%v)", l.Name, err)
				}
			}
		})
	}
}

// Clients that trust the old certificate of an authority must trust certificates that the renewed one signs: it has the
// same key and name.
func TestRenewedAuthorityKeepsItsClients(t *testing.T) {
	dir := newDir(t)
	ensure(t, dir, smallPlan(), t0)
	before := mustCert(t, dir, "ca")
	now := t0.Add(authorityLife * 3 / 4)
	ensure(t, dir, smallPlan(), now)
	roots := x509.NewCertPool()
	roots.AddCert(before)
	if _, err := mustCert(t, dir, "node").Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
}

// An authority with ManyChecks gets a key whose signatures are fast to verify, if the key is new; an existing key
// stays.
func TestKindsOfKeys(t *testing.T) {
	plain := smallPlan()
	plain.Authorities[0].ManyChecks = false
	for _, c := range []struct {
		what   string
		before Plan
		ca     x509.PublicKeyAlgorithm
	}{
		{"made new", smallPlan(), x509.RSA},
		{"there from before", plain, x509.ECDSA},
	} {
		dir := newDir(t)
		ensure(t, dir, c.before, t0)
		if changed := ensure(t, dir, smallPlan(), t0); changed != nil {
			t.Errorf("%s: changed %v", c.what, changed)
		}
		for name, want := range map[string]x509.PublicKeyAlgorithm{"ca": c.ca, "other-ca": x509.ECDSA, "node": x509.ECDSA} {
			if got := mustCert(t, dir, name).PublicKeyAlgorithm; got != want {
				t.Errorf("%s: the key of %s is %v, want %v", c.what, name, got, want)
			}
		}
	}
}

// A damaged authority is not replaced, since its clients would fail.
func TestDamagedAuthorityIsAnError(t *testing.T) {
	for _, c := range []struct {
		what  string
		spoil func(*testing.T, string, *Plan)
	}{
		{"certificate damaged", overwrite("ca.crt")},
		{"key damaged", overwrite("ca.key")},
		{"key gone", remove("ca.key")},
		{"key of another", func(t *testing.T, dir string, _ *Plan) {
			copyFile(t, KeyPath(dir, "other-ca"),
				KeyPath(dir, "ca"))
		}},
	} {
		dir := newDir(t)
		ensure(t, dir, smallPlan(), t0)
		c.spoil(t, dir, nil)
		if _, err := Ensure(dir, smallPlan(), t0); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "ca.")) {
			t.Errorf("%s: error %v does not name the file", c.what, err)
		}
	}
}

func TestUnknownAuthority(t *testing.T) {
	plan := Plan{Leaves: []Leaf{{Name: "a", Authority: "nobody"}}}
	if _, err := Ensure(newDir(t), plan, t0); err == nil || !strings.Contains(err.Error(), `"nobody"`) {
		t.Errorf("error %v", err)
	}
}

func remove(name string) func(*testing.T, string, *Plan) {
	return func(t *testing.T, dir string, _ *Plan) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func overwrite(name string) func(*testing.T, string, *Plan) {
	return func(t *testing.T, dir string, _ *Plan) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("\x00\x00 half a sector"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func BenchmarkMakeKey(b *testing.B) {
	path := filepath.Join(b.TempDir(), "k")
	for b.Loop() {
		if _, err := makeKey(path, false); err != nil {
			b.Fatal(err)
		}
	}
}
