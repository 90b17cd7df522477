//go:build e2e

package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// Each restart policy with a success and a failure.
func TestRestartPolicy(t *testing.T) {
	b := at(t)
	type outcome struct {
		policy corev1.RestartPolicy
		code   int32
		phase  corev1.PodPhase // Running: the container is restarted
	}
	all := []outcome{
		{corev1.RestartPolicyNever, 0, corev1.PodSucceeded}, {corev1.RestartPolicyNever, 1, corev1.PodFailed},
		{corev1.RestartPolicyOnFailure, 0, corev1.PodSucceeded}, {corev1.RestartPolicyOnFailure, 1, corev1.PodRunning},
		{corev1.RestartPolicyAlways, 0, corev1.PodRunning}, {corev1.RestartPolicyAlways, 1, corev1.PodRunning},
	}
	name := func(o outcome) string { return strings.ToLower(string(o.policy)) + fmt.Sprint(o.code) }
	for _, o := range all {
		spec := brief(workload("c", "exit", "--code", fmt.Sprint(o.code)))
		spec.RestartPolicy = o.policy
		b.create(name(o), spec)
	}
	for _, o := range all {
		reason := "Completed"
		if o.code != 0 {
			reason = "Error"
		}
		var end *corev1.ContainerStateTerminated
		if o.phase == corev1.PodRunning {
			p := b.until(name(o), "backs off", soon, func(p *corev1.Pod) error {
				if container(p, "c").RestartCount < 1 {
					return fmt.Errorf("%d restarts", container(p, "c").RestartCount)
				}
				return waiting("c", "CrashLoopBackOff")(p)
			})
			b.want(name(o)+" phase", string(p.Status.Phase), "Running")
			b.want(name(o)+" waits", container(p, "c").State.Waiting.Message,
				fmt.Sprintf("back-off %ds restarting failed container=c pod=%s_%s(%s)",
					// the back-off begins with 10 s at the second exit, and doubles
					5<<container(p, "c").RestartCount, p.Name, p.Namespace, p.UID))
			b.event(name(o), "BackOff", "Back-off restarting failed container c in pod "+name(o)+"_"+b.ns)
			end = container(p, "c").LastTerminationState.Terminated
		} else {
			p := b.ended(name(o), o.phase)
			if n := container(p, "c").RestartCount; n != 0 {
				t.Errorf("%s was restarted %d times", name(o), n)
			}
			end = container(p, "c").State.Terminated
			if c := condition(p, corev1.PodReady); c.Status != corev1.ConditionFalse ||
				(o.phase == corev1.PodSucceeded) != (c.Reason == "PodCompleted") {
				t.Errorf("%s: Ready is %+v", name(o), c)
			}
		}
		if end == nil {
			t.Errorf("%s: no end of its container", name(o))
			continue
		}
		if end.ExitCode != o.code || end.Reason != reason || end.ContainerID == "" || end.FinishedAt.Before(&end.StartedAt) {
			t.Errorf("%s: container ended with %+v, want exit code %d, %s", name(o), end, o.code, reason)
		}
		b.event(name(o), "Started", "Container started")
	}
}

// The second run of a crashing container comes after 10 s, and only the newest dead container is kept.
func TestBackoffAndDeadContainers(t *testing.T) {
	b := at(t)
	pod := b.create("p", lasting(workload("c", "exit", "--code", "3")))
	b.until("p", "third run", soon, func(p *corev1.Pod) error {
		if n := container(p, "c").RestartCount; n < 2 {
			return fmt.Errorf("%d restarts", n)
		}
		return waiting("c", "CrashLoopBackOff")(p)
	})
	b.want("previous log", strings.TrimSpace(b.kubectl("logs", "-p", "p")), "exiting with 3")
	runtime, err := cri.Dial("unix://" + b.RuntimeSocket())
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, soon, "two dead containers are left", func(ctx context.Context) error {
		answer, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(pod.UID)},
		}})
		if err == nil && len(answer.Containers) != 2 {
			err = fmt.Errorf("%d containers", len(answer.Containers))
		}
		return err
	})
	rig.Eventually(t, soon, "log files of the last two runs are left", func(context.Context) error {
		files, err := filepath.Glob(filepath.Join(b.PodLogs(), "*_p_"+string(pod.UID), "c", "*.log"))
		if err == nil && (len(files) == 0 || len(files) > 2) {
			err = fmt.Errorf("%v", files)
		}
		return err
	})
}

// Init containers run one after the other before the others; a sidecar runs beside them and ends last.
func TestInitAndSidecar(t *testing.T) {
	b := at(t)
	always := corev1.ContainerRestartPolicyAlways
	shared := []corev1.VolumeMount{{Name: "d", MountPath: "/d"}}
	first := workload("first", "run", "write --append /d/log first", "sleep 300ms")
	sidecar := workload("sidecar", "run", "write --append /d/log sidecar", "http")
	sidecar.RestartPolicy = &always
	sidecar.StartupProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: get("/healthz",
		8080)}}
	second := workload("second", "run", "get http://127.0.0.1:8080/healthz", "write --append /d/log second")
	main := workload("main", "run", "get http://127.0.0.1:8080/healthz", "write --append /d/log main", "cat /d/log")
	spec := brief(main)
	spec.InitContainers = []corev1.Container{first, sidecar, second}
	spec.Volumes = []corev1.Volume{{Name: "d",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			list[i].VolumeMounts = shared
		}
	}
	b.create("p", spec)
	p := b.ended("p", corev1.PodSucceeded)
	if log := b.logs("p", "main"); !strings.HasSuffix(log, "first\nsidecar\nsecond\nmain\n") {
		t.Errorf("order: %q", log)
	}
	if s := container(p, "sidecar"); s.State.Terminated == nil || s.RestartCount != 0 {
		t.Errorf("sidecar: %+v", s)
	}
	if err := wantCondition(p, corev1.PodInitialized, corev1.ConditionTrue); err != nil {
		t.Error(err)
	}

	bad := brief(workload("main", "sleep", "infinity"))
	bad.InitContainers = []corev1.Container{workload("init", "exit", "--code", "4")}
	b.create("never", bad)
	bad.RestartPolicy = corev1.RestartPolicyAlways
	b.create("again", bad)
	p = b.ended("never", corev1.PodFailed)
	if end := container(p, "init").State.Terminated; end == nil || end.ExitCode != 4 {
		t.Errorf("init container: %+v", container(p, "init"))
	}
	if w := container(p, "main").State.Waiting; w == nil || w.Reason != "PodInitializing" {
		t.Errorf("main container: %+v", container(p, "main"))
	}
	p = b.until("again", "its init container backs off", soon, waiting("init", "CrashLoopBackOff"))
	b.want("phase", string(p.Status.Phase), "Pending")
	if c := condition(p, corev1.PodInitialized); c.Status != corev1.ConditionFalse ||
		c.Reason != "ContainersNotInitialized" || c.Message != "containers with incomplete status: [init]" {
		t.Errorf("Initialized: %+v", c)
	}
	if out := b.kubectl("get", "pod", "again"); !strings.Contains(out, "Init:CrashLoopBackOff") {
		t.Errorf("kubectl shows %s", out)
	}
}

// A sidecar's preStop hook begins with the end of its pod, and SIGTERM comes in its turn, after the main containers.
func TestSidecarHook(t *testing.T) {
	b := at(t)
	dir := t.TempDir()
	preStop := func(verbs ...string) *corev1.Lifecycle {
		return &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: append([]string{"/workload", "run"}, verbs...)}},
		}
	}
	side := workload("side", "sleep", "infinity")
	side.RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
	side.Lifecycle = preStop("write --append /host/log side-hook")
	main := workload("main", "sleep", "infinity")
	main.Lifecycle = preStop("sleep 2s", "write --append /host/log main-hook")
	spec := lasting(main)
	spec.InitContainers = []corev1.Container{side}
	spec.TerminationGracePeriodSeconds = ptr(int64(30))
	spec.Volumes = []corev1.Volume{{Name: "host",
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}}}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			list[i].VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/host"}}
		}
	}
	b.create("p", spec)
	b.ready("p")
	b.delete("p", -1, soon)
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(string(log)); len(got) < 2 || got[0] != "side-hook" || got[1] != "main-hook" {
		t.Errorf("order: %q", got)
	}
}

// A container's rules decide about its exits instead of its policy: one code restarts it, one restarts every container
// of the pod in the same sandbox, init containers first, and any other is final.
func TestRestartRules(t *testing.T) {
	b := at(t)
	rule := func(action corev1.ContainerRestartRuleAction, code int32) corev1.ContainerRestartRule {
		return corev1.ContainerRestartRule{Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{code},
		}}
	}
	web := workload("web", "run", "write --append /d/log web", "http")
	web.RestartPolicy = ptr(corev1.ContainerRestartPolicyNever)
	web.RestartPolicyRules = []corev1.ContainerRestartRule{
		rule(corev1.ContainerRestartRuleActionRestart, 41), rule(corev1.ContainerRestartRuleActionRestartAllContainers, 42),
	}
	spec := brief(web, workload("other", "run", "write --append /d/log other", "sleep infinity"))
	spec.InitContainers = []corev1.Container{workload("init", "write", "--append", "/d/log", "init")}
	spec.Volumes = []corev1.Volume{{Name: "d",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			list[i].VolumeMounts = []corev1.VolumeMount{{Name: "d", MountPath: "/d"}}
		}
	}
	b.create("p", spec)
	begun := b.ready("p")
	address := begun.Status.PodIP
	after := func(code int, init, web, other int32) *corev1.Pod {
		b.in("p/other", "get", fmt.Sprintf("http://%s:8080/exit?code=%d", address, code))
		return b.until("p", fmt.Sprintf("exit %d was acted on", code), soon, func(p *corev1.Pod) error {
			for name, want := range map[string]int32{"init": init, "web": web, "other": other} {
				if got := container(p, name).RestartCount; got != want {
					return fmt.Errorf("%s was restarted %d times, want %d", name, got, want)
				}
			}
			if last := container(p, "web").LastTerminationState.Terminated; last == nil || last.ExitCode != int32(code) {
				return fmt.Errorf("last end of web: %+v", last)
			}
			return wantCondition(p, corev1.PodReady, corev1.ConditionTrue)
		})
	}
	after(41, 0, 1, 0)
	p := after(42, 1, 2, 1)
	b.want("address", p.Status.PodIP, address) // the sandbox is the same
	for kind, want := range map[corev1.PodConditionType]corev1.ConditionStatus{
		corev1.AllContainersRestarting: corev1.ConditionFalse, corev1.PodInitialized: corev1.ConditionTrue,
	} {
		if err := wantCondition(p, kind, want); err != nil {
			t.Error(err)
		}
	}
	if was, is := condition(begun, corev1.PodInitialized), condition(p,
		corev1.PodInitialized); !was.LastTransitionTime.Equal(&is.LastTransitionTime) {
		t.Errorf("Initialized changed: %+v, %+v", was, is)
	}
	lines := strings.Fields(b.in("p/other", "cat", "/d/log"))
	if len(lines) != 7 || lines[0] != "init" || lines[3] != "web" || lines[4] != "init" {
		t.Errorf("ran: %q", lines)
	}
	b.in("p/other", "get", "http://"+address+":8080/exit?code=1")
	b.until("p", "web ended for good", soon, func(p *corev1.Pod) error {
		if end := container(p, "web").State.Terminated; end == nil || end.ExitCode != 1 ||
			container(p, "other").RestartCount != 1 {
			return fmt.Errorf("web %+v", container(p, "web"))
		}
		return nil
	})
}

// A pod that ignores SIGTERM is killed at the end of its termination grace period, and not before.
func TestTerminationGrace(t *testing.T) {
	b := at(t)
	stubborn := lasting(workload("c", "ignore-term"), workload("d", "ignore-term"))
	stubborn.TerminationGracePeriodSeconds = ptr(int64(4))
	polite := lasting(workload("c", "sleep", "infinity"))
	polite.TerminationGracePeriodSeconds = ptr(int64(600))
	for _, name := range []string{"stubborn", "now", "force", "shortened"} {
		b.create(name, stubborn)
	}
	b.create("polite", polite)
	for _, name := range []string{"stubborn", "now", "force", "shortened", "polite"} {
		b.ready(name)
	}
	time.Sleep(2 * time.Second) // until each process ignores SIGTERM, which a busy machine may start late
	end := make(chan *corev1.Pod, 1)
	watch, err := b.API.CoreV1().Pods(b.ns).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=stubborn"})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		var last *corev1.Pod
		for e := range watch.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				last = p
			}
			if e.Type == "DELETED" {
				watch.Stop()
			}
		}
		end <- last
	}()
	if took := b.delete("stubborn", -1, 4*time.Second+slack); took < 4*time.Second {
		t.Errorf("a pod that ignores SIGTERM, with a grace period of 4 s, was gone after %v", took)
	}
	if p := <-end; p != nil {
		one, two := container(p, "c").State.Terminated, container(p, "d").State.Terminated
		switch {
		case one == nil || two == nil || one.ExitCode != 137 || two.ExitCode != 137:
			t.Errorf("last states of containers that ignore SIGTERM: %+v, %+v", one, two)
		case one.FinishedAt.Sub(two.FinishedAt.Time).Abs() > 3*time.Second:
			t.Errorf("containers of one pod were killed one after the other, at %v and %v", one.FinishedAt, two.FinishedAt)
		}
	}
	for name, grace := range map[string]int64{"now": 0, "polite": -1} {
		b.delete(name, grace, slack)
	}
	b.kubectl("delete", "pod", "force", "--force", "--grace-period=0")
	b.gone("force", slack)
	b.kubectl("delete", "pod", "shortened", "--grace-period=600", "--wait=false")
	b.delete("shortened", 1, slack)
}

// A pod may be deleted at any moment of its start. Nothing of it is left.
func TestDeletedWhileStarting(t *testing.T) {
	b := at(t)
	var uids []string
	stages := map[string]func(*corev1.Pod) error{
		"at-once": func(*corev1.Pod) error { return nil },
		"bound":   func(p *corev1.Pod) error { return wantCondition(p, corev1.PodScheduled, corev1.ConditionTrue) },
		"in-init": func(p *corev1.Pod) error {
			if container(p, "init").State.Running == nil {
				return fmt.Errorf("init container: %+v", container(p, "init").State)
			}
			return nil
		},
	}
	for stage, reached := range stages {
		spec := lasting(workload("c", "sleep", "infinity"))
		spec.InitContainers = []corev1.Container{workload("init", "sleep", "infinity")}
		uids = append(uids, string(b.create(stage, spec).UID))
		b.until(stage, "reached", soon, reached)
		b.delete(stage, -1, slack)
	}
	for _, uid := range uids {
		b.leavesNothing(uid)
	}
}

// leavesNothing waits until the node has nothing of a pod: no container, directory, log, cgroup.
func (b bench) leavesNothing(uid string) {
	b.t.Helper()
	runtime, err := cri.Dial("unix://" + b.RuntimeSocket())
	if err != nil {
		b.t.Fatal(err)
	}
	rig.Eventually(b.t, 20*time.Second, "nothing is left of pod "+uid, func(ctx context.Context) error {
		sandboxes, err := runtime.ListPodSandbox(ctx,
			&runtimeapi.ListPodSandboxRequest{
				Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": uid}},
			})
		if err == nil && len(sandboxes.Items) > 0 {
			err = fmt.Errorf("sandboxes: %v", sandboxes.Items)
		}
		if err != nil {
			return err
		}
		for _, pattern := range []string{
			b.AgentRoot() + "/pods/" + uid, b.PodLogs() + "/*_" + uid, "/sys/fs/cgroup/*" + b.CgroupRoot() + "/kubepods/*/pod" +
				uid, "/sys/fs/cgroup/*" + b.CgroupRoot() + "/kubepods/pod" + uid,
		} {
			if left, err := filepath.Glob(pattern); err != nil || left != nil {
				return fmt.Errorf("left: %v %v", left, err)
			}
		}
		return nil
	})
}

// activeDeadlineSeconds ends a pod for good, and keeps its logs: of a pod that is created with it, which a busy machine
// may not have started by then, and of one that runs when it gets it.
func TestActiveDeadline(t *testing.T) {
	b := at(t)
	spec := lasting(workload("c", "run", "log --lines 1", "sleep infinity"))
	b.create("p", spec)
	spec.ActiveDeadlineSeconds = ptr(int64(3))
	b.create("born-with-it", spec)
	active := time.Since(b.ready("p").Status.StartTime.Time)
	b.kubectl("patch", "pod", "p", "--patch", fmt.Sprintf(`{"spec":{"activeDeadlineSeconds":%d}}`,
		int(active.Seconds())+4))
	for _, name := range []string{"born-with-it", "p"} {
		p := b.ended(name, corev1.PodFailed)
		b.want("reason", p.Status.Reason, "DeadlineExceeded")
		b.want("message", p.Status.Message, "Pod was active on the node longer than the specified deadline")
	}
	rig.Eventually(t, soon, "its container ended", func(ctx context.Context) error {
		p, err := b.API.CoreV1().Pods(b.ns).Get(ctx, "p", metav1.GetOptions{})
		if err == nil && container(p, "c").State.Terminated == nil {
			err = fmt.Errorf("%+v", container(p, "c").State)
		}
		return err
	})
	if log := b.logs("p", "c"); !strings.HasPrefix(log, "line 1") {
		t.Errorf("its log: %q", log)
	}
	b.event("p", "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
}

// The termination message of a container comes from its file, otherwise from its log.
func TestTerminationMessage(t *testing.T) {
	b := at(t)
	told := workload("told", "exit", "--code", "1", "--message", "out of luck")
	logged := workload("logged", "run", "log --lines 3", "exit --code 1")
	logged.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	silent := workload("silent", "run", "log --lines 3", "exit --code 1")
	elsewhere := workload("elsewhere", "exit", "--message", "over here", "--message-path", "/tmp/last-words")
	elsewhere.TerminationMessagePath = "/tmp/last-words"
	b.create("p", brief(told, logged, silent, elsewhere))
	p := b.ended("p", corev1.PodFailed)
	for name, want := range map[string]string{"told": "out of luck", "silent": "", "elsewhere": "over here"} {
		if end := container(p, name).State.Terminated; end == nil || end.Message != want {
			t.Errorf("%s: %+v, want message %q", name, end, want)
		}
	}
	if end := container(p, "logged").State.Terminated; end == nil || !strings.HasPrefix(end.Message, "line 1") ||
		!strings.HasSuffix(strings.TrimSpace(end.Message), "exiting with 1") {
		t.Errorf("logged: %+v", end)
	}
}

// Hooks run at the right time, an Event reports one that fails, and a slow preStop hook does not lengthen the
// termination grace period.
func TestHooks(t *testing.T) {
	b := at(t)
	dir := t.TempDir()
	hooked := workload("c", "run", "http")
	write := func(name string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/workload", "write", "/host/" + name,
			"done"}}}
	}
	hooked.Lifecycle = &corev1.Lifecycle{PostStart: write("poststart"), PreStop: write("prestop")}
	hooked.VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/host"}}
	spec := lasting(hooked)
	spec.TerminationGracePeriodSeconds = ptr(int64(20))
	spec.Volumes = []corev1.Volume{{Name: "host",
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}}}
	b.create("hooked", spec)

	web := workload("c", "http")
	web.Lifecycle = &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/workload", "exit", "--code", "3"}}},
	}
	b.create("failing", lasting(web))

	slow := workload("c", "sleep", "infinity")
	slow.Lifecycle = &corev1.Lifecycle{
		PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/workload", "sleep", "60"}}},
	}
	spec = lasting(slow)
	spec.TerminationGracePeriodSeconds = ptr(int64(3))
	b.create("slow", spec)

	b.ready("hooked")
	if _, err := os.Stat(filepath.Join(dir, "poststart")); err != nil {
		t.Error(err)
	}
	b.delete("hooked", -1, soon)
	if _, err := os.Stat(filepath.Join(dir, "prestop")); err != nil {
		t.Error(err)
	}
	b.event("failing", "FailedPostStartHook", "PostStartHook failed")
	b.ready("slow")
	if took := b.delete("slow", -1, 3*time.Second+slack); took < 3*time.Second {
		t.Errorf("a preStop hook of 60 s within a grace of 3 s took %v", took)
	}
}
