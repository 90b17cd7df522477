//go:build e2e

package hostile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
	ours "github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// attack is a row of the table.
type attack struct {
	name string
	does string // what its pods do, in words

	by     []user // of the container; nil: every user
	copies int    // pods for each user; 0: one

	prepare func(s *siege) error                     // creates what the pods need, once; may be nil
	pod     func(s *siege, p *corev1.Pod)            // turns a plain pod into the attacker
	during  func(s *siege, p *corev1.Pod) error      // what the tenant does with its pod through the API; may be nil
	holds   outcome                                  // what must become true for each pod
	limit   string                                   // what part of the attack is known to succeed, and why; empty: none
	alone   bool                                     // only in TestOneByOne
	left    func(s *siege, pods []*corev1.Pod) error // what must be true at the end, besides the pods; may be nil
}

// user is the user of a pod's containers.
type user int64

const (
	root   user = 0
	nobody user = 65534
)

func (u user) String() string {
	if u == root {
		return "root"
	}
	return "nobody"
}

// siege is one test: a neighbour, attackers, and the watch of their pods.
type siege struct {
	*rig.Cluster
	t         *testing.T
	ns        string // the attackers'
	sight     *sight
	agent     *agent
	neighbour *neighbour
	children  []rig.Child
}

// least is how often each figure is measured at least, before and under attack.
const least = 5

// peace is the neighbour's figures before any attack. They are measured once for all tests, so that what one test
// leaves in the agent counts in the next.
var peace struct {
	once           sync.Once
	alone, crowded *figures
}

// ordinary is a crowd of well-behaved pods, as many as an attack has. They use all the CPU that they may, and half the
// disk. By what they slow the neighbour down, two CPUs are too few for all, and that is no fault.
var ordinary = attack{
	name: "ordinary", does: "uses its CPU and half its disk", copies: 25,
	pod:   as(emptyDir, disk(allowed), run("disk --path /d/x --size 8Mi --exit", "cpu --milli 200")),
	holds: runs,
}

// begin creates the neighbour. The first test measures its figures before any attack.
func begin(t *testing.T) *siege {
	t.Helper()
	c := rig.Shared(t)
	s := &siege{Cluster: c, t: t, ns: c.Namespace(t)}
	var err error
	if s.sight, err = watch(t.Context(), c.API); err != nil {
		t.Fatal(err)
	}
	if s.agent, err = dialAgent(c); err != nil {
		t.Fatal(err)
	}
	s.neighbour = moveIn(t, c, s.sight)
	if s.children, _, err = c.Children(); err != nil {
		t.Fatal(err)
	}
	peace.once.Do(func() {
		peace.alone = s.beside(1)
		peace.crowded = s.beside(1, ordinary)
		s.neighbour.compareCrowd()
	})
	return s
}

// plain is a pod that does nothing. Its limits are low enough for many such pods.
func (s *siege) plain(a attack, u user, number int) *corev1.Pod {
	grace, id := int64(2), int64(u)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%v-%d", a.name, u, number), Namespace: s.ns,
			Labels: map[string]string{"attack": a.name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken:  new(bool),
			SecurityContext:               &corev1.PodSecurityContext{RunAsUser: &id},
			Containers:                    []corev1.Container{container("c", "sleep", "infinity")},
		},
	}
}

func container(name string, args ...string) corev1.Container {
	return corev1.Container{
		Name:  name,
		Image: ours.Demo,
		Args:  args,
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"),
				corev1.ResourceMemory: resource.MustParse("4Mi")},
			Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"),
				corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
	}
}

// Times of a test (chosen). Limits of local storage are checked every ten seconds, and a container that has crashed
// twice waits for twenty. A busy machine adds to that.
const (
	holdsWithin = 2 * time.Minute  // for conditions to become true
	goesWithin  = 90 * time.Second // for an attacker to be gone; its termination grace period is 2 s
)

// suffer creates attackers, waits until their conditions are true, and deletes them, while the neighbour is measured.
// Each attack has so many pods for each user.
func (s *siege) suffer(times int, attacks ...attack) {
	s.t.Helper()
	s.neighbour.compare(s.beside(times, attacks...))
	s.unharmed()
}

// beside measures the neighbour from the creation of the attackers to their deletion. There may be none.
func (s *siege) beside(times int, attacks ...attack) (lives *figures) {
	over := make(chan struct{})
	var life, war sync.WaitGroup
	life.Go(func() { lives = s.neighbour.live(over, least) })
	for _, a := range attacks {
		war.Go(func() { s.wage(a, times) })
	}
	war.Wait()
	close(over)
	life.Wait()
	return lives
}

// wage runs one attack from its creation to its deletion.
func (s *siege) wage(a attack, times int) {
	if a.prepare != nil {
		if err := a.prepare(s); err != nil {
			s.t.Errorf("%s: %v", a.name, err)
			return
		}
	}
	users := a.by
	if users == nil {
		users = []user{root, nobody}
	}
	var mu sync.Mutex
	var pods []*corev1.Pod
	var all sync.WaitGroup
	for _, u := range users {
		for number := range max(a.copies, 1) * times {
			all.Go(func() {
				pod := s.plain(a, u, number)
				a.pod(s, pod)
				created, err := s.neighbour.create(s.t.Context(), pod)
				if err != nil {
					s.t.Errorf("%s: %v", a.name, err)
					return
				}
				mu.Lock()
				pods = append(pods, created)
				mu.Unlock()
				if err := s.meet(a, created); err != nil {
					s.t.Errorf("%s, %s: %s: %v", a.name, a.does, created.Name, err)
				}
			})
		}
	}
	all.Wait()
	if a.left != nil {
		if err := a.left(s, pods); err != nil {
			s.t.Errorf("%s, %s: %v", a.name, a.does, err)
		}
	}
	for _, pod := range pods {
		all.Go(func() {
			if err := s.sendAway(pod); err != nil {
				s.t.Errorf("%s, %s: %s goes: %v", a.name, a.does, pod.Name, err)
			}
		})
	}
	all.Wait()
}

// meet runs the tenant's part of the attack, and waits for its outcome.
func (s *siege) meet(a attack, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), holdsWithin)
	defer cancel()
	if a.during != nil {
		if err := a.during(s, pod); err != nil {
			return err
		}
	}
	_, err := s.sight.until(ctx, pod, time.Now(), func(p *corev1.Pod) error { return a.holds(s, p) })
	return err
}

// sendAway deletes a pod as users do, and checks that nothing is left of it on the node.
func (s *siege) sendAway(pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), goesWithin)
	defer cancel()
	began := time.Now()
	if err := s.API.CoreV1().Pods(s.ns).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if _, err := s.sight.until(ctx, pod, began, absent); err != nil {
		return err
	}
	_, err := s.sight.until(ctx, pod, began, func(*corev1.Pod) error { return s.traces(pod) })
	return err
}

// traces returns what the node still has of a deleted pod.
func (s *siege) traces(pod *corev1.Pod) error {
	uid := string(pod.UID)
	for _, pattern := range []string{
		s.AgentRoot() + "/pods/" + uid, s.PodLogs() + "/*_" + uid,
		"/sys/fs/cgroup/*" + s.CgroupRoot() + "/kubepods/*/pod" + uid, "/sys/fs/cgroup/*" + s.CgroupRoot() + "/kubepods/pod" +
			uid,
	} {
		if left, err := filepath.Glob(pattern); err != nil || left != nil {
			return fmt.Errorf("left: %v %w", left, err)
		}
	}
	points, err := mount.Below(filepath.Join(s.AgentRoot(), "pods", uid))
	if err != nil || len(points) > 0 {
		return fmt.Errorf("mounts are left: %v %w", points, err)
	}
	return nil
}

// unharmed checks that the instance's processes and the neighbour's pod are still the same.
func (s *siege) unharmed() {
	s.t.Helper()
	children, _, err := s.Children()
	if err != nil {
		s.t.Error(err)
	}
	for i, was := range s.children {
		if i >= len(children) || children[i] != was {
			s.t.Errorf("process %+v is not there any more: %+v", was, children)
		}
	}
	stays, _ := s.sight.pod(s.neighbour.stays)
	if err := ready(stays); err != nil {
		s.t.Errorf("the neighbour's pod that stays: %v", err)
	} else if n := stays.Status.ContainerStatuses[0].RestartCount; n != 0 {
		s.t.Errorf("the neighbour's pod that stays was restarted %d times", n)
	}
	node, err := s.API.CoreV1().Nodes().Get(s.t.Context(), s.NodeName, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && (c.Status != corev1.ConditionTrue ||
			c.LastTransitionTime.After(s.neighbour.stays.CreationTimestamp.Time)) {
			s.t.Errorf("the node's Ready is %s since %v: %s", c.Status, c.LastTransitionTime, c.Message)
		}
		if c.Type != corev1.NodeReady && c.Status == corev1.ConditionTrue {
			s.t.Errorf("the node has %s: %s", c.Type, c.Message)
		}
	}
	if err := counts(0, neighboursDisk)(s, stays); err != nil {
		s.t.Errorf("the neighbour's pod that stays: %v", err)
	}
	if text, err := os.ReadFile(s.LogFile("agent")); err == nil {
		if i := strings.Index(string(text), "panic:"); i >= 0 {
			s.t.Errorf("the agent panicked: %.2000s", text[i:])
		}
	}
}

// neighboursDisk bounds the usage that the agent may report for the neighbour's pod, which writes a log only.
const neighboursDisk = 4 << 20
