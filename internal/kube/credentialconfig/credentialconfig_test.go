package credentialconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/kube/configfile"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const good = `
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: cloud
  matchImages: ["*.example.com", "registry.example.org:5000/team"]
  defaultCacheDuration: 10m
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: ["get"]
  env: [{name: REGION, value: here}]
  tokenAttributes:
    serviceAccountTokenAudience: registry
    cacheType: ServiceAccount
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: ["example.com/role"]
`

// The hashes of good, and of the two files of TestLoadDirectory, as computed by Python's hashlib and struct.
const (
	hashOfGood = "sha256:af5eeda8e55ae052f9dcf5cbf249072a416792c5622627b86463fadbcd81a26b"
	hashOfTwo  = "sha256:3b755af5d933461d0c47a410def3a818f377de732f3a5f4ba8bbc1b85dd55d42"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad(t *testing.T) {
	providers, hash, err := Load(write(t, t.TempDir(), "config.yaml", good))
	if err != nil {
		t.Fatal(err)
	}
	if hash != hashOfGood {
		t.Errorf("hash = %q, want %q", hash, hashOfGood)
	}
	if len(providers) != 1 || providers[0].Name != "cloud" ||
		providers[0].TokenAttributes.ServiceAccountTokenAudience != "registry" {
		t.Errorf("providers = %+v", providers)
	}
}

// TestLoadDirectory: files count in the order of their names, other files are ignored, and no name may be used twice.
func TestLoadDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "20.yaml", strings.ReplaceAll(good, "name: cloud", "name: second"))
	write(t, dir, "10.yml", strings.ReplaceAll(strings.ReplaceAll(good, "/v1\n", "/v1beta1\n"),
		good[strings.Index(good, "  tokenAttributes"):], ""))
	write(t, dir, "README", "nothing to read")
	providers, hash, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if hash != hashOfTwo {
		t.Errorf("hash = %q, want %q", hash, hashOfTwo)
	}
	if len(providers) != 2 || providers[0].Name != "cloud" || providers[1].Name != "second" {
		t.Errorf("providers = %+v", providers)
	}
	write(t, dir, "30.json", `{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","providers":[{"name":"second",
		"matchImages":["x"],"defaultCacheDuration":"0s","apiVersion":"credentialprovider.kubelet.k8s.io/v1"}]}`)
	if _, _, err := Load(dir); err == nil || !strings.Contains(err.Error(), `provider "second": is listed twice`) {
		t.Errorf("a name that is listed twice: %v", err)
	}
	if _, _, err := Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no file in it ends in") {
		t.Errorf("an empty directory: %v", err)
	}
}

// TestBad: every problem is in the one error.
func TestBad(t *testing.T) {
	for name, one := range map[string]struct{ old, new, want string }{
		"another kind": {"kind: Cred", "kind: Fred", "want CredentialProviderConfig"},
		"unknown version": {"apiVersion: kubelet.config.k8s.io/v1", "apiVersion: kubelet.config.k8s.io/v9",
			"want kubelet.config.k8s.io/v1"},
		"unknown field":         {"args:", "arguments:", `unknown field`},
		"a path for a name":     {"name: cloud", "name: ../../bin/sh", "without blanks and slashes"},
		"no patterns":           {`["*.example.com", "registry.example.org:5000/team"]`, "[]", "at least one pattern"},
		"a scheme":              {"registry.example.org:5000/team", "https://registry.example.org", "no scheme"},
		"a pattern that is bad": {"*.example.com", "[.example.com", "syntax error in pattern"},
		"no duration":           {"defaultCacheDuration: 10m", "defaultCacheDuration: null", "want a duration"},
		"negative":              {"10m", "-1s", "want zero or more"},
		"plugin version": {"credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v2",
			"want one of"},
		"tokens too early": {"credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1beta1",
			"need apiVersion"},
		"no audience": {"serviceAccountTokenAudience: registry", `serviceAccountTokenAudience: ""`,
			"want an audience"},
		"cache type": {"cacheType: ServiceAccount", "cacheType: Pod", "want ServiceAccount or Token"},
		"without an account": {"requireServiceAccount: true", "requireServiceAccount: false",
			"need requireServiceAccount"},
		"twice":  {`["example.com/role"]`, `["example.com/role", "example.com/role"]`, "is listed twice"},
		"no key": {`["example.com/role"]`, `["not a key"]`, "annotation key"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(good, one.old, one.new, 1)
			if text == good {
				t.Fatalf("%q is not in the good text", one.old)
			}
			if _, _, err := Load(write(t, t.TempDir(), "config.yaml", text)); err == nil ||
				!strings.Contains(err.Error(), one.want) {
				t.Errorf("got %v, want %q", err, one.want)
			}
		})
	}
	two := strings.NewReplacer("10m", "-1s", "cacheType: ServiceAccount", "cacheType: Pod").Replace(good)
	if _, _, err := Load(write(t, t.TempDir(), "config.yaml", two)); err == nil ||
		!strings.Contains(err.Error(), "2 problems") {
		t.Errorf("two problems: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	cost.Attack(f, good)
	f.Add(cost.Aliases("apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n"))
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		var p configfile.Problems
		check(decode([]byte(text), &p), &p)
		if len(text) == 0 && len(p) == 0 {
			t.Error("a file without providers is taken")
		}
	})
}
