// Package console has the tests of `plimsoll console` in a browser: headless Chromium looks at the real program, which
// looks at an API server of the test.
//
// They need Chromium (scripts/deps.sh console installs Debian's) and bin/plimsoll; `make console-test` sees to both.
package console

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/deploy"
)

var pictures = flag.String("pictures", "", "write the pictures for the page in docs to this directory")

// seen is how soon a change must be on the page.
const seen = time.Second

// bench is a program with its API server, and a browser at its page.
type bench struct {
	t       *testing.T
	api     *api
	program *exec.Cmd
	address string
	ctx     context.Context // of the browser's tab
}

// start starts the program for an API server, and opens its page.
func start(t *testing.T, a *api) *bench {
	t.Helper()
	b := &bench{t: t, api: a}
	dir := t.TempDir()
	config := filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"users: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n", a.at)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.program = exec.Command("../../bin/plimsoll", "console", "--kubeconfig", config)
	b.program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	b.program.Stderr = os.Stderr
	out, err := b.program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.program.Process.Signal(os.Interrupt)
		if err := b.program.Wait(); err != nil {
			t.Errorf("the program ends with %v", err)
		}
	})
	if b.address, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	b.address = strings.TrimSpace(b.address)
	b.browse(dir)
	b.run(chromedp.Navigate(b.address))
	return b
}

// browse starts a browser with a profile of its own.
func (b *bench) browse(dir string) {
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(filepath.Join(dir, "profile")),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WindowSize(1280, 900))
	browser, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, endTab := chromedp.NewContext(browser)
	if _, err := chromedp.Run(ctx, chromedp.Title()); err != nil { // starts the browser, for as long as ctx lasts
		b.t.Fatal(err)
	}
	b.ctx = ctx
	b.t.Cleanup(func() {
		endTab()
		end()
	})
}

func (b *bench) run(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// do evaluates an expression in the page for its effect.
func (b *bench) do(expression string) {
	b.t.Helper()
	b.run(chromedp.Evaluate[chromedp.Void](expression))
}

// input writes into a field, as a person does.
func (b *bench) input(selector, text string) {
	b.t.Helper()
	b.do(fmt.Sprintf("{const e = document.querySelector(%q); e.value = %q; e.dispatchEvent(new Event('input'))}", selector,
		text))
}

// ask evaluates an expression in the page.
func ask[T any](b *bench, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// until waits until an expression is true in the page, and returns how long that took.
func (b *bench) until(within time.Duration, expression string) time.Duration {
	b.t.Helper()
	began := time.Now()
	for {
		if ask[bool](b, "Boolean("+expression+")") {
			return time.Since(began)
		}
		if time.Since(began) > within {
			b.t.Fatalf("not true within %v: %s\nthe page shows:\n%.3000s", within, expression,
				ask[string](b, "document.body.innerText"))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// go to a view.
func (b *bench) show(hash string) { b.do("location.hash = " + strconv.Quote(hash)) }

// says is an expression: an element has a text.
func says(selector, text string) string {
	return fmt.Sprintf("((e) => (e ? e.innerText || e.textContent : '').includes(%q))(document.querySelector(%q))", text,
		selector)
}

// picture writes the page as it is seen, if pictures are wanted.
func (b *bench) picture(name string) {
	if *pictures == "" {
		return
	}
	shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*pictures, name), shot, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func nodeOf(i int) *corev1.Node {
	list := corev1.ResourceList{
		"cpu": resource.MustParse("16"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110"),
		"ephemeral-storage": resource.MustParse("200Gi"),
	}
	left := list.DeepCopy()
	left["cpu"], left["memory"] = resource.MustParse("15500m"), resource.MustParse("61Gi")
	name := fmt.Sprintf("node-%04d", i)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{
			"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "zone-" + string(rune('a'+i%3)),
		}},
		Status: corev1.NodeStatus{
			Capacity: list, Allocatable: left,
			Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True", Reason: "KubeletReady"}},
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"},
		},
	}
}

func podOf(name, node, cpu, memory string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name),
			CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{
			NodeName: node, SchedulerName: "default-scheduler",
			Containers: []corev1.Container{{Name: "app", Image: "none", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)},
			}}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: "Ready", Status: "True"}},
		},
	}
	if node == "" {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	}
	return p
}

// fleet is a cluster of many nodes, each with a few pods.
func fleet(a *api, nodes int) {
	for i := range nodes {
		n := nodeOf(i)
		a.set(n)
		for k := range i % 7 {
			a.set(podOf(fmt.Sprintf("web-%d-%d", i, k), n.Name, "2", "9Gi"))
		}
	}
}

// TestFiveThousandNodes: the page shows what the API says, within a second of a change, and the program idles below a
// hundredth of a core while the nodes report their status.
func TestFiveThousandNodes(t *testing.T) {
	const nodes = 5000
	a := newAPI(t)
	fleet(a, nodes)
	b := start(t, a)
	first := b.until(30*time.Second, says("#shown", "5000 nodes"))
	t.Logf("5,000 nodes are shown %v after the page was opened", first.Round(time.Millisecond))
	b.until(seen, says(".tiles", "5000 ready, 0 in trouble"))
	// node-0006 has six pods of 9Gi: the fullest there are
	b.input("#filter", "node-0006")
	b.until(seen, says("[data-node=node-0006]", "54Gi of 61Gi (89%)"))

	for i := range 10 {
		a.set(podOf(fmt.Sprintf("late-%d", i), "node-0006", "100m", "512Mi"))
		took := b.until(seen, says("[data-node=node-0006]", fmt.Sprintf("%v of 61Gi", gibi(54+0.5*float64(i+1)))))
		t.Logf("a change is shown after %v", took.Round(time.Millisecond))
	}
	n := nodeOf(6)
	n.Status.Conditions[0].Status = "Unknown"
	n.Spec.Unschedulable = true
	a.set(n)
	b.until(seen, says("[data-node=node-0006]", "silent, cordoned"))
	a.remove(n)
	b.until(seen, says("#shown", "0 nodes of 4999"))

	a.set(podOf("big", "", "15", "60Gi"))
	took := b.until(10*time.Second, says("#waiting-count", "(1)"))
	t.Logf("a pod that waits is judged on 4,999 nodes and shown after %v", took.Round(time.Millisecond))
	big := podOf("big", "node-0000", "15", "60Gi")
	a.set(big)
	took = b.until(10*time.Second, "document.querySelector('#waiting-count').innerText === ''")
	t.Logf("its placement is shown after %v", took.Round(time.Millisecond))

	time.Sleep(2 * time.Second)
	const idle = 20 * time.Second
	stop, done := make(chan bool), make(chan bool)
	go func() { // each node reports its status every five minutes
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Minute / nodes):
			}
			n := nodeOf(10 + i)
			n.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
			a.set(n)
		}
	}()
	before := b.cpu()
	time.Sleep(idle)
	share := float64(b.cpu()-before) / float64(idle)
	close(stop)
	<-done
	t.Logf("idle: %.2f %% of a core, %d MiB resident", 100*share, b.resident()>>20)
	if share > 0.01 {
		t.Errorf("idle: %.2f %% of a core, want 1 at most", 100*share)
	}
}

func gibi(n float64) string {
	if n == float64(int(n)) {
		return fmt.Sprintf("%.0fGi", n)
	}
	return fmt.Sprintf("%.1fGi", n)
}

// cpu returns how much CPU time the program has used.
func (b *bench) cpu() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.program.Process.Pid))
	if err != nil {
		b.t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * time.Second / 100 // USER_HZ
}

func (b *bench) resident() int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", b.program.Process.Pid))
	pages, _ := strconv.Atoi(strings.Fields(string(text))[1])
	return pages * os.Getpagesize()
}

// summaryOf is what an agent says about its memory.
func summaryOf(available int64, pods ...string) string {
	type memory map[string]any
	now := time.Now().UTC().Format(time.RFC3339Nano)
	of := func(available, used int64) memory {
		return memory{"time": now, "availableBytes": available, "workingSetBytes": used, "usageBytes": used, "rssBytes": used}
	}
	var list []any
	for _, pod := range pods {
		list = append(list, map[string]any{
			"podRef": map[string]string{"name": pod, "namespace": "shop", "uid": "uid-" + pod},
			"memory": memory{"time": now, "workingSetBytes": 4 << 30, "usageBytes": 4 << 30, "rssBytes": 4 << 30},
		})
	}
	text, _ := json.Marshal(map[string]any{ // numbers and strings
		"node": map[string]any{"nodeName": "n", "memory": of(available, 64<<30-available)},
		"pods": list,
	})
	return string(text)
}

// report is the report of an agent about NUMA nodes, of which the pod web-1 has four CPUs and 8 GiB for itself.
const report = `
apiVersion: topology.node.k8s.io/v1alpha2
kind: NodeResourceTopology
metadata: {name: node-0002}
topologyPolicies: []
zones: []
attributes:
- {name: topologyManagerPolicy, value: single-numa-node}
- {name: topologyManagerScope, value: container}
- name: plimsoll.dev/machine
  value: |
    {"apiVersion":"plimsoll.dev/v1alpha1","kind":"Machine","spec":{"numaNodes":[
      {"id":0,"cpus":"0-7","memory":"32Gi"},{"id":1,"cpus":"8-15","memory":"32Gi"}],
      "sockets":{"0":"0-7","1":"8-15"},
      "threadSiblings":["0-1","2-3","4-5","6-7","8-9","10-11","12-13","14-15"],
      "filesystems":{"nodefs":{"capacity":"200Gi"}}}}
- {name: plimsoll.dev/config, value: '{"cpu":{"reserved":"0-1"}}'}
- {name: plimsoll.dev/plugins, value: '[]'}
- {name: plimsoll.dev/pods, value: '[{"uid":"uid-web-1","containers":[{"name":"app","cpus":"2-5"}]}]'}
`

const evil = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`

// shop is a small cluster with a node on which much is to be seen.
func shop(a *api) {
	for i := range 24 {
		n := nodeOf(i)
		if i == 2 {
			n.Status.NodeInfo.KubeletVersion = "v1.36.3+plimsoll.0.1.0"
		}
		if i == 5 {
			n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "blue", Effect: "NoSchedule"}}
		}
		if i == 7 {
			n.Status.Conditions[0] = corev1.NodeCondition{Type: "Ready", Status: "False", Message: evil}
		}
		a.set(n)
		for k := range (i * 5) % 7 {
			a.set(podOf(fmt.Sprintf("app-%d-%d", i, k), n.Name, "2", "9Gi"))
		}
	}
	a.set(podOf("web-1", "node-0002", "4", "8Gi"), podOf("web-2", "node-0002", "1", "4Gi"))
	var topology map[string]any
	if err := yaml.Unmarshal([]byte(report), &topology); err != nil {
		a.t.Fatal(err)
	}
	a.set(topologyOf(a.t, topology))
	a.agents["node-0002 /configz"] = `{"kubeletconfig":{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1",` +
		`"maxPods":110,"evictionHard":{"memory.available":"512Mi"},"evictionSoft":{"memory.available":"2Gi"},` +
		`"evictionSoftGracePeriod":{"memory.available":"1m30s"},"evictionPressureTransitionPeriod":"5m0s"}}`
	a.agents["node-0002 /stats/summary"] = summaryOf(5<<30, "web-1", "web-2")
	a.agents["node-0002 /journal"] = `{"first":1,"last":1,"records":[{"number":1,"time":"` +
		time.Now().Add(-70*time.Second).UTC().Format(time.RFC3339Nano) + `","kind":"eviction","text":"evicted shop/leak",` +
		`"pods":[{"namespace":"shop","name":"leak","uid":"u"}],"detail":{"Decided":{"Met":[{"Signal":"memory.available",` +
		`"Available":400000000,"Capacity":68719476736,"Line":536870912,"Acts":true}]}}}]}`
	for i := range 3 {
		p := podOf(fmt.Sprintf("search-%d", i), "", "1", "2Gi")
		p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		a.set(p)
	}
	a.set(podOf("huge", "", "40", "2Gi"))
	a.set(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "shop", Name: "search-0.1"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "search-0", UID: "uid-search-0"},
		Reason:         "FailedScheduling", Message: evil, Type: "Warning", Count: 3, LastTimestamp: metav1.Now(),
		Source: corev1.EventSource{Component: "default-scheduler"},
	})
}

// TestViews looks at every view.
func TestViews(t *testing.T) {
	a := newAPI(t)
	shop(a)
	b := start(t, a)
	b.until(10*time.Second, says("#shown", "24 nodes"))
	b.until(10*time.Second, says("#waiting-count", "(4)"))
	if got := ask[string](b, "location.search"); got != "" {
		t.Errorf("the address still has %q", got)
	}
	b.picture("console-fleet.png")

	t.Run("waiting", func(t *testing.T) {
		b := b.in(t)
		b.show("#/waiting")
		b.until(seen, says("#waits", "4 pods wait; 24 nodes."))
		b.until(seen, says("[data-group='shop/search-0']", "label node node-0000 with disk=ssd"))
		b.until(seen, says("[data-group='shop/huge']", "Insufficient cpu"))
		b.picture("console-waiting.png")
		n := nodeOf(0)
		n.Labels["disk"] = "ssd"
		a.set(n)
		took := b.until(seen, says("[data-group='shop/search-0']", "Fits now on 1 node: node-0000"))
		t.Logf("a node's label changes the answer after %v", took.Round(time.Millisecond))
		a.set(nodeOf(0))
		b.until(seen, says("[data-group='shop/search-0']", "label node node-0000"))
	})

	t.Run("node", func(t *testing.T) {
		b := b.in(t)
		b.show("#/node/node-0002")
		b.until(10*time.Second, says("main", "5Gi of 64Gi available"))
		b.until(seen, says("main", "ready, run by plimsoll's agent"))
		b.until(seen, says("main", "1 eviction in the journal"))
		b.until(seen, says(".chart", "hard threshold 512Mi"))
		b.until(seen, says(".chart", "soft threshold 2Gi, for 1m30s"))
		for cpu, owner := range map[int]string{1: "–", 2: "A", 5: "A", 6: "·", 12: "·"} {
			b.until(seen, says(fmt.Sprintf("[data-cpu='%d'] b", cpu), owner))
		}
		b.until(seen, says(".legend", "shop/web-1"))
		// the pods request 48 GiB: three of 9 GiB, and 12 GiB
		b.until(seen, says(".loads", "39Gi of 61Gi"))
		b.until(seen, "document.querySelector('#threshold').value === '512Mi'")
		b.input("#threshold", "6Gi")
		took := b.until(seen, says("#threshold-answer", "would be evicted now"))
		t.Logf("the core answers about a threshold after %v", took.Round(time.Millisecond))
		b.pictureOfNode()
		b.run(chromedp.Focus("#grip"), chromedp.KeyEvent(kb.Home))
		b.until(seen, says("#threshold-answer", "No pod would be evicted now."))
		b.drag("#grip", -60)
		b.until(seen, "document.querySelector('#grip').getAttribute('aria-valuenow') > 2**30")
		b.until(seen, "document.querySelector('#threshold-answer').dataset.value === "+
			"document.querySelector('#threshold').value")

		a.mu.Lock()
		a.agents["node-0002 /stats/summary"] = summaryOf(3<<30, "web-1", "web-2")
		a.mu.Unlock()
		b.until(7*time.Second, says("main", "3Gi of 64Gi available"))
		b.show("#/node/node-0007")
		b.until(3*time.Second, says("main", evil))
		b.until(3*time.Second, says("main", "No report about its NUMA nodes"))
		b.show("#/node/none")
		b.until(3*time.Second, says("main", "no node of this name"))
	})

	t.Run("pod", func(t *testing.T) {
		b := b.in(t)
		b.show("#/pod/shop/search-0")
		b.until(3*time.Second, says(".story", evil))
		b.until(seen, says("main", "didn't match Pod's node affinity/selector"))
		b.picture("console-pod.png")
		p := podOf("search-0", "node-0000", "1", "2Gi")
		a.set(p)
		took := b.until(seen, says("#pod-state", "On node node-0000: Running."))
		t.Logf("a pod's story changes after %v", took.Round(time.Millisecond))
		if ask[bool](b, "Boolean(window.hacked) || document.querySelectorAll('main img, main script').length > 0") {
			t.Error("text of the cluster became markup")
		}
	})

	t.Run("what if", func(t *testing.T) {
		b := b.in(t)
		b.show("#/what-if")
		b.until(3*time.Second, says("#pod-answer", "It fits."))
		b.input("#copies", "100")
		b.input("#memory", "40Gi")
		b.until(seen, "/^\\d+ of 100 fit\\./.test(document.querySelector('#pod-answer').innerText)")
		b.until(seen, says("#pod-answer", "Insufficient memory"))
		b.picture("console-what-if.png")
		b.input("#copies", "1")
		b.input("#cpu", "99")
		b.until(seen, says("#pod-answer", "It fits nowhere."))
		b.input("#manifest", "kind: Nonsense")
		b.until(seen, "document.querySelector('#pod-answer .bad')")
	})

	t.Run("readers", func(t *testing.T) { readers(b.in(t)) })

	t.Run("away", func(t *testing.T) {
		b := b.in(t)
		a.setAway(true)
		b.until(15*time.Second, says("#health", "The API server does not answer since"))
		a.setAway(false)
		b.until(15*time.Second, "document.querySelector('#health').innerText === ''")
	})

	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict([]byte(deploy.Console), &role); err != nil {
		t.Fatal(err)
	}
	may := map[string]bool{}
	for _, rule := range role.Rules {
		for _, of := range rule.Resources {
			for _, verb := range rule.Verbs {
				may[verb+" "+strings.TrimSuffix(of+"."+rule.APIGroups[0], ".")] = true
			}
		}
	}
	for _, request := range slices.Sorted(maps.Keys(a.asked)) {
		if !may[request] {
			t.Errorf("%s: is requested, and not in deploy/rbac-console.yaml", request)
		}
	}
}

// in returns b for a part of a test.
func (b *bench) in(t *testing.T) *bench {
	one := *b
	one.t = t
	return &one
}

// pictureOfNode takes a picture after memory was used up for a while.
func (b *bench) pictureOfNode() {
	if *pictures == "" {
		return
	}
	b.run(chromedp.EmulateViewport(1180, 1010))
	for _, available := range []int64{26, 24, 25, 20, 17, 14, 11, 9, 8, 6, 5} {
		b.api.mu.Lock()
		b.api.agents["node-0002 /stats/summary"] = summaryOf(available<<30, "web-1", "web-2")
		b.api.mu.Unlock()
		b.until(8*time.Second, says("main", fmt.Sprintf("%dGi of 64Gi available", available)))
	}
	b.input("#threshold", "6200Mi")
	b.until(seen, says("#threshold-answer", "would be evicted now"))
	b.picture("console-node.png")
	b.run(chromedp.ResetViewport())
}

// drag moves an element vertically with the mouse.
func (b *bench) drag(selector string, by float64) {
	type point struct{ X, Y float64 }
	at := ask[point](b, fmt.Sprintf("(() => {const r = document.querySelector(%q).getBoundingClientRect(); "+
		"return {X: r.x + r.width / 2, Y: r.y + r.height / 2}})()", selector))
	b.run(
		chromedp.MouseEvent("mouseMoved", at.X, at.Y),
		chromedp.MouseEvent("mousePressed", at.X, at.Y, chromedp.ButtonLeft),
		chromedp.MouseEvent("mouseMoved", at.X, at.Y+by/2, chromedp.ButtonLeft),
		chromedp.MouseEvent("mouseMoved", at.X, at.Y+by, chromedp.ButtonLeft),
		chromedp.MouseEvent("mouseReleased", at.X, at.Y+by, chromedp.ButtonLeft),
	)
}

// contrast computes the contrast of the text of the page to its ground.
const contrast = `(() => {
  const light = (c) => {
    const [r, g, b] = c.match(/[\d.]+/g).slice(0, 3).map((x) => x / 255).map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let least = 21;
  for (const e of document.querySelectorAll('main *, header *')) {
    if (!e.childNodes.length || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    if (e.closest('.hidden, .skip, option, svg')) continue;
    let g = e;
    while (g && /rgba\(0, 0, 0, 0\)/.test(getComputedStyle(g).backgroundColor)) g = g.parentElement;
    if (!g) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(getComputedStyle(g).backgroundColor)];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
})()`

// media makes the browser prefer something.
func (b *bench) media(features ...*emulation.MediaFeature) {
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		b.t.Fatal(err)
	}
}

// readers: the page is legible in light and dark, at 200 % and on a phone, and works with the keyboard alone.
func readers(b *bench) {
	views := []string{"#/fleet", "#/waiting", "#/node/node-0002", "#/pod/shop/huge", "#/what-if"}
	for _, theme := range []string{"light", "dark"} {
		b.media(&emulation.MediaFeature{Name: "prefers-color-scheme", Value: theme})
		for _, view := range views {
			b.show(view)
			b.until(3*time.Second, "document.querySelector('main h2')")
			time.Sleep(300 * time.Millisecond)
			if got := ask[float64](b, contrast); got < 4.5 {
				b.t.Errorf("%s, %s: the contrast of some text is %.2f, want 4.5", view, theme, got)
			}
		}
		if theme == "dark" {
			b.show("#/node/node-0002")
			b.until(7*time.Second, says("main", "available"))
			b.picture("console-dark.png")
		}
	}
	b.media()
	for _, screen := range []struct {
		name          string
		width, height int64
		scale         float64
	}{{"a phone", 360, 740, 2}, {"200 %", 640, 450, 2}} {
		b.run(chromedp.EmulateViewport(screen.width, screen.height, chromedp.EmulateScale(screen.scale)))
		for _, view := range views {
			b.show(view)
			time.Sleep(300 * time.Millisecond)
			wide := ask[string](b, `(() => {
			  const over = [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 &&
			    !e.closest('.scroll, .hidden, .skip, svg, option'));
			  return document.documentElement.scrollWidth > innerWidth ? over.map((e) => e.tagName + '.' + e.className).join(' ') || 'scrolls' : '';
			})()`)
			if wide != "" {
				b.t.Errorf("%s, %s: is wider than the screen: %s", view, screen.name, wide)
			}
		}
		if screen.name == "a phone" {
			b.show("#/fleet")
			time.Sleep(300 * time.Millisecond)
			b.picture("console-phone.png")
		}
	}
	b.run(chromedp.ResetViewport())

	b.show("#/fleet")
	b.until(seen, says("#shown", "24 nodes"))
	b.until(seen, "document.querySelector('[aria-posinset=\"2\"]')")
	first := ask[string](b, "document.querySelector('[aria-posinset=\"2\"]').dataset.node")
	b.run(chromedp.Focus("#nodes"), chromedp.KeyEvent(kb.ArrowDown))
	b.until(seen, fmt.Sprintf("document.querySelector('[aria-selected=true]')?.dataset.node === %q", first))
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(seen, says("main h2", "Node "+first))
	b.run(chromedp.KeyEvent("w"))
	b.until(seen, says("main h2", "Waiting pods"))
	b.run(chromedp.KeyEvent("/"), chromedp.KeyEvent("shop/huge"+kb.Enter))
	b.until(seen, says("main h2", "Pod shop/huge"))
}
