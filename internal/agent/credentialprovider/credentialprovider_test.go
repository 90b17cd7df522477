package credentialprovider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// bench is a directory of plugins. They are shell scripts, whose calls are counted in a file.
type bench struct {
	t        *testing.T
	dir      string
	now      time.Time
	accounts *accounts
}

func newBench(t *testing.T) *bench {
	return &bench{t: t, dir: t.TempDir(), now: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC), accounts: &accounts{}}
}

// plugin writes a plugin that records its call and its input, and then executes body.
func (b *bench) plugin(name, body string) kubeletconfigv1.CredentialProvider {
	b.t.Helper()
	script := fmt.Sprintf("#!/bin/sh\ncat >> %s/%s.in\necho >> %s/%s.in\n%s\n", b.dir, name, b.dir, name, body)
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(script), 0o700); err != nil {
		b.t.Fatal(err)
	}
	return kubeletconfigv1.CredentialProvider{
		Name: name, MatchImages: []string{"*.example.com"}, DefaultCacheDuration: &metav1.Duration{Duration: time.Minute},
		APIVersion: "credentialprovider.kubelet.k8s.io/v1",
	}
}

// answering is the body of a plugin that answers with a password for its registry, cached for a scope.
func answering(scope, password string) string {
	return fmt.Sprintf(`echo '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse",`+
		`"cacheKeyType":"%s","auth":{"*.example.com":{"username":"me","password":"%s"}}}'`, scope, password)
}

func (b *bench) new(plugins ...kubeletconfigv1.CredentialProvider) *Providers {
	b.t.Helper()
	p, err := New(Options{Dir: b.dir, Providers: plugins, Accounts: b.accounts, Now: func() time.Time { return b.now }})
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// calls returns the requests to a plugin.
func (b *bench) calls(name string) []string {
	text, err := os.ReadFile(filepath.Join(b.dir, name+".in"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// passwords asks for an image and returns the passwords in the order in which they are tried.
func (b *bench) passwords(p *Providers, image string) string {
	b.t.Helper()
	ring, err := p.For(context.Background(), pod("default"), image)
	if err != nil {
		b.t.Fatal(err)
	}
	var all []string
	for _, auth := range ring.For(image) {
		all = append(all, auth.Auth.Password)
	}
	return strings.Join(all, " ")
}

// waitMax is how long a test waits for something that normally happens at once. Chosen: a machine that is busy with
// other tests needs seconds to start a shell.
const waitMax = 30 * time.Second

// pidIn waits until a plugin has written a process id to a file, and returns it.
func (b *bench) pidIn(name string) (pid int) {
	b.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(waitMax); ; {
		text, err := os.ReadFile(filepath.Join(b.dir, name))
		if err == nil && strings.HasSuffix(string(text), "\n") {
			_, err = fmt.Sscan(string(text), &pid)
		}
		if pid != 0 {
			return pid
		}
		select {
		case <-tick.C:
		case <-end:
			b.t.Fatalf("no process id in %s after %s: %v", name, waitMax, err)
		}
	}
}

func pod(account string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec:       corev1.PodSpec{ServiceAccountName: account},
	}
}

// accounts answers for service accounts.
type accounts struct {
	mu          sync.Mutex
	annotations map[string]string
	tokens      int
}

func (a *accounts) ServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "sa",
		Annotations: a.annotations}}, nil
}

func (a *accounts) Token(_ context.Context, _, name string,
	r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens++
	out := r.DeepCopy()
	out.Status.Token = fmt.Sprint("token ", a.tokens, " of ", name, " for ", r.Spec.Audiences, " bound to ",
		r.Spec.BoundObjectRef.UID)
	return out, nil
}

func TestAsked(t *testing.T) {
	b := newBench(t)
	p := b.new(b.plugin("a", answering("Image", "of-a")), b.plugin("b", answering("Image", "of-b")))
	if got := b.passwords(p, "reg.example.com/team/app:1"); got != "of-a of-b" {
		t.Errorf("passwords %q, want those of both, in their order", got)
	}
	want := `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"reg.example.com/team/app:1"}`
	if got := b.calls("a"); len(got) != 1 || got[0] != want {
		t.Errorf("a was asked %q, want %q", got, want)
	}
	if got := b.passwords(p, "example.org/app"); got != "" || len(b.calls("a")) != 1 {
		t.Errorf("for an image that matches nothing: %q, calls %q", got, b.calls("a"))
	}
}

func TestEnvironmentAndArguments(t *testing.T) {
	b := newBench(t)
	config := b.plugin("a", strings.Replace(answering("Image", "PASSWORD"), "PASSWORD", `'"$REGION-$1"'`, 1))
	config.Args, config.Env = []string{"$(id)"}, []kubeletconfigv1.ExecEnvVar{{Name: "REGION", Value: "here"}}
	if got := b.passwords(b.new(config), "reg.example.com/app"); got != "here-$(id)" {
		t.Errorf("password %q, want what the arguments and the environment say, through no shell", got)
	}
}

// TestCache: an answer is used for the images and the time that its plugin named, and not beyond.
func TestCache(t *testing.T) {
	for _, c := range []struct {
		scope string
		order []string
	}{
		{"Image", []string{"x.example.com/a:1", "x.example.com/a:2", "x.example.com/a@sha256:0", "x.example.com/b",
			"y.example.com/a"}},
		{"Registry", []string{"x.example.com/a", "x.example.com/b:1", "y.example.com/a"}},
		{"Global", []string{"x.example.com/a", "y.example.com/b"}},
	} {
		want := map[string]int{"Image": 3, "Registry": 2, "Global": 1}[c.scope]
		t.Run(c.scope, func(t *testing.T) {
			b := newBench(t)
			p := b.new(b.plugin("a", answering(c.scope, "x")))
			for range 2 {
				for _, image := range c.order {
					if got := b.passwords(p, image); got != "x" {
						t.Errorf("%s: %q", image, got)
					}
				}
			}
			if got := len(b.calls("a")); got != want {
				t.Errorf("%d calls, want %d", got, want)
			}
			b.now = b.now.Add(time.Minute)
			b.passwords(p, c.order[0])
			if got := len(b.calls("a")); got != want+1 {
				t.Errorf("%d calls after the answer ended, want %d", got, want+1)
			}
		})
	}
	b := newBench(t)
	p := b.new(b.plugin("never", strings.Replace(answering("Global", "x"), `"auth"`, `"cacheDuration":"0s","auth"`, 1)))
	b.passwords(p, "x.example.com/a")
	b.passwords(p, "x.example.com/a")
	if got := len(b.calls("never")); got != 2 {
		t.Errorf("%d calls of a plugin whose answers are not to be kept, want 2", got)
	}
}

// TestCacheIsBounded: the number of kept answers is bounded, however many images there are.
func TestCacheIsBounded(t *testing.T) {
	c := newCache()
	now := time.Now()
	for i := range 3 * cacheMax {
		c.keep(fmt.Sprint(i), answer{until: now.Add(time.Duration(i))})
	}
	if _, ok := c.answers[fmt.Sprint(3*cacheMax-1)]; len(c.answers) != cacheMax || !ok {
		t.Errorf("%d answers, the last among them: %v", len(c.answers), ok)
	}
}

// TestTokens: a plugin with tokenAttributes gets a token of the pod's account, and its answers are used for that
// account only.
func TestTokens(t *testing.T) {
	yes := true
	with := func(b *bench, kind kubeletconfigv1.ServiceAccountTokenCacheType) *Providers {
		config := b.plugin("a", answering("Global", "x"))
		config.TokenAttributes = &kubeletconfigv1.ServiceAccountTokenAttributes{
			ServiceAccountTokenAudience: "registry", CacheType: kind, RequireServiceAccount: &yes,
			RequiredServiceAccountAnnotationKeys: []string{"role"}, OptionalServiceAccountAnnotationKeys: []string{"zone"},
		}
		return b.new(config)
	}
	ask := func(p *Providers, account string) error {
		_, err := p.For(context.Background(), pod(account), "x.example.com/a")
		return err
	}
	b := newBench(t)
	p := with(b, kubeletconfigv1.ServiceAccountServiceAccountTokenCacheType)
	if err := ask(p, "one"); err == nil || !strings.Contains(err.Error(),
		`service account ns/one has no annotation "role"`) {
		t.Errorf("without the annotation: %v", err)
	}
	if err := ask(p, ""); err != nil || len(b.calls("a")) != 0 {
		t.Errorf("a pod without an account: %v, calls %q", err, b.calls("a"))
	}
	b.accounts.annotations = map[string]string{"role": "r", "other": "not asked for"}
	for _, account := range []string{"one", "one", "two"} {
		if err := ask(p, account); err != nil {
			t.Error(err)
		}
	}
	got := b.calls("a")
	if len(got) != 2 || !strings.Contains(got[0],
		`"serviceAccountToken":"token 1 of one for [registry] bound to u","serviceAccountAnnotations":{"role":"r"}`) {
		t.Errorf("calls %q", got)
	}
	b.accounts.annotations = map[string]string{"role": "another"}
	if err := ask(p, "one"); err != nil || len(b.calls("a")) != 3 {
		t.Errorf("after its annotation changed: %v, %d calls", err, len(b.calls("a")))
	}
	for _, key := range []string{"token 1"} {
		for kept := range p.plugins[0].cache.answers {
			if strings.Contains(kept, key) {
				t.Errorf("the cache holds a token: %q", kept)
			}
		}
	}

	b = newBench(t)
	b.accounts.annotations = map[string]string{"role": "r"}
	p = with(b, kubeletconfigv1.TokenServiceAccountTokenCacheType)
	_, _ = ask(p, "one"), ask(p, "one")
	if got := len(b.calls("a")); got != 2 {
		t.Errorf("%d calls where each token has an answer of its own, want 2", got)
	}
}

// TestBadPlugins: the error says what a plugin did wrong, and the credentials of the next one are used all the same.
func TestBadPlugins(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"fails":        {"echo no key >&2; exit 3", "exit status 3: no key"},
		"says nothing": {"", "read its answer: unexpected end of JSON input"},
		"talks":        {"echo hello", "read its answer: invalid character"},
		"another version": {strings.Replace(answering("Global", "x"), "k8s.io/v1", "k8s.io/v9", 1),
			"want a CredentialProviderResponse of"},
		"another scope": {answering("Galaxy", "x"), "want Image, Registry or Global"},
		"goes back": {strings.Replace(answering("Global", "x"), `"auth"`, `"cacheDuration":"-1s","auth"`, 1),
			"want zero or more"},
		"never ends":     {"exec yes", "longer than 1048576 bytes"},
		"complains much": {"yes no | head -c 1000000 >&2; exit 1", "no\nno"},
		"kills itself":   {"kill -9 $$", "signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			p := b.new(b.plugin("bad", c.body), b.plugin("good", answering("Image", "x")))
			ring, err := p.For(context.Background(), pod("default"), "x.example.com/a")
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), `credential provider "bad"`) || len(err.Error()) > 2*errorMax {
				t.Errorf("error %q, want %q", err, c.want)
			}
			if auths := ring.For("x.example.com/a"); len(auths) != 1 {
				t.Errorf("the good one's credentials: %v", auths)
			}
		})
	}
}

// TestRunsAreMeasured: each run of a program is reported, and whether it failed.
func TestRunsAreMeasured(t *testing.T) {
	b := newBench(t)
	p := b.new(b.plugin("bad", "exit 3"), b.plugin("good", answering("Image", "x")))
	var told []string
	for _, plugin := range p.plugins {
		plugin.ran = func(name string, took time.Duration, err error) {
			told = append(told, fmt.Sprint(name, " ", took > 0, " ", err))
		}
	}
	_, _ = p.For(context.Background(), pod("default"), "x.example.com/a")
	if got := strings.Join(told, ", "); got != "bad true exit status 3, good true <nil>" {
		t.Errorf("told %s", got)
	}
}

// TestHangs: a plugin that hangs is ended together with its child. A caller that waits for it may give up before.
func TestHangs(t *testing.T) {
	b := newBench(t)
	p := b.new(b.plugin("hangs", fmt.Sprintf("sleep 1000 & echo $! > %s/child; wait", b.dir)))
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() {
		_, err := p.For(ctx, pod("default"), "x.example.com/a")
		left <- err
	}()
	child := b.pidIn("child")
	leave()
	select {
	case err := <-left:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
	case <-time.After(waitMax):
		t.Errorf("who left still waits after %s", waitMax)
	}
	end, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := p.plugins[0].call(end, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that takes too long: %v", err)
	}
	// The call in the background goes on for its minute: the test ends it.
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// TestOneQuestion: pods that start together cause one call.
func TestOneQuestion(t *testing.T) {
	b := newBench(t)
	p := b.new(b.plugin("slow", "sleep 0.2\n"+answering("Image", "x")))
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if got := b.passwords(p, "x.example.com/a"); got != "x" {
				t.Errorf("password %q", got)
			}
		})
	}
	all.Wait()
	if got := len(b.calls("slow")); got != 1 {
		t.Errorf("%d calls, want 1", got)
	}
}

func TestNew(t *testing.T) {
	b := newBench(t)
	config := b.plugin("a", "")
	for name, change := range map[string]func(*kubeletconfigv1.CredentialProvider){
		"no such file or directory": func(c *kubeletconfigv1.CredentialProvider) { c.Name = "absent" },
		"leads out of":              func(c *kubeletconfigv1.CredentialProvider) { c.Name = "../a" },
		"want a program":            func(c *kubeletconfigv1.CredentialProvider) { c.Name = "text" },
	} {
		if err := os.WriteFile(filepath.Join(b.dir, "text"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		bad := config
		change(&bad)
		if _, err := New(Options{Dir: b.dir, Providers: []kubeletconfigv1.CredentialProvider{config, bad}}); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	p := &plugin{
		CredentialProvider: kubeletconfigv1.CredentialProvider{APIVersion: "credentialprovider.kubelet.k8s.io/v1"},
	}
	cost.Attack(f,
		`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Image",`+
			`"cacheDuration":"1h","auth":{"*.example.com":{"username":"me","password":"x"}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if got, err := p.decode([]byte(text)); err == nil && got.APIVersion != p.APIVersion {
			t.Errorf("took %+v", got)
		}
	})
}
