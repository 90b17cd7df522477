//go:build e2e

package rig

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var shared struct {
	once    sync.Once
	start   func() (*Cluster, error)
	cluster *Cluster
	err     error
}

// parallel is how many tests of a package run at once (chosen: two CPUs start some six pods per second).
const parallel = 12

// Main runs the tests of a package on one instance and returns the exit code. The first test that calls Shared starts
// the instance.
func Main(m *testing.M, name string, o Options) int {
	shared.start = func() (*Cluster, error) { return Start(name, o) }
	// Tests of pods mostly wait for timers. A flag on the command line has precedence.
	if err := flag.Set("test.parallel", strconv.Itoa(cmp.Or(o.Parallel, parallel))); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return 1
	}
	code := m.Run()
	if err := removePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		code = max(code, 1)
	}
	c := shared.cluster
	if c == nil {
		return code
	}
	if code != 0 {
		c.dumpLogs(os.Stderr)
	}
	if err := c.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return max(code, 1)
	}
	return code
}

// Shared returns the package's instance. It skips the test, with the reason, if none can run.
func Shared(t *testing.T) *Cluster {
	t.Helper()
	shared.once.Do(func() {
		if shared.start == nil {
			shared.err = errors.New("TestMain did not call rig.Main")
			return
		}
		began := time.Now()
		shared.cluster, shared.err = shared.start()
		t.Logf("instance up after %v", time.Since(began).Round(100*time.Millisecond))
	})
	if errors.Is(shared.err, ErrCannot) {
		t.Skip(shared.err)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}

// New starts an instance for one test, which ends with it. It skips the test, with the reason, if none can run.
func New(t *testing.T, name string, o Options) *Cluster {
	t.Helper()
	c, err := Start(name, o)
	if errors.Is(err, ErrCannot) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpLogs(os.Stderr)
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// Namespace creates a namespace for the test. When the test ends, its content is printed if the test failed, and its
// deletion begins.
func (c *Cluster) Namespace(t *testing.T) string {
	t.Helper()
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "-"), "-")
	name = strings.Trim(name[:min(len(name), 40)], "-")
	namespace, err := c.API.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpNamespace(t, namespace.Name)
		}
		ctx := context.WithoutCancel(t.Context())
		now := int64(0) // tests of grace periods wait for them themselves
		_ = c.API.CoreV1().Pods(namespace.Name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now},
			metav1.ListOptions{})
		if err := c.API.CoreV1().Namespaces().Delete(ctx, namespace.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	Eventually(t, 30*time.Second, "the default service account", func(ctx context.Context) error {
		_, err := c.API.CoreV1().ServiceAccounts(namespace.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return namespace.Name
}
