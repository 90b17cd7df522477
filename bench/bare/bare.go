// Package bare is a loop that binds pods to nodes in rotation without any decision: the most binds that an API server
// can give a scheduler. It writes no Events and checks nothing.
//
// A measuring program runs itself again with Command as its first argument, so that the loop is a separate process, as
// schedulers are.
package bare

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Command is the first argument with which a measuring program runs the loop.
const Command = "bare-loop"

// Workers is how many bindings are in flight. Chosen: as many as in plimsoll scheduler.
const Workers = 64

// Options of the loop.
type Options struct {
	Kubeconfig string
	Workers    int    // how many bindings are in flight
	Namespace  string // of the pods; empty: all
	// Follow: pods are bound as they arrive, for which the server has a watch. Otherwise only the pods that exist at
	// the start are bound.
	Follow bool
}

// Start runs this program again as the loop.
func Start(log string, o Options) (*plane.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return plane.Start(log, self, Command, "--kubeconfig", o.Kubeconfig, "--workers", fmt.Sprint(o.Workers),
		"--namespace", o.Namespace, fmt.Sprintf("--follow=%v", o.Follow))
}

// Main runs the loop if the program was started as such; else it returns false at once.
func Main() bool {
	if len(os.Args) < 2 || os.Args[1] != Command {
		return false
	}
	os.Args = os.Args[1:]
	record.Main(Command, parse, run)
	return true
}

func parse(args []string) (o Options, err error) {
	f := flag.NewFlagSet(Command, flag.ContinueOnError)
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "how to reach the API server")
	f.IntVar(&o.Workers, "workers", Workers, "bindings in flight")
	f.StringVar(&o.Namespace, "namespace", "", "namespace of the pods; empty: all")
	f.BoolVar(&o.Follow, "follow", false, "bind pods as they come")
	return o, f.Parse(args)
}

// run binds until ctx ends.
func run(ctx context.Context, o Options) (bool, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return false, err
	}
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return false, err
	}
	if o.Follow {
		c, err := kube.NewClientForConfig(config)
		if err != nil {
			return false, err
		}
		return true, follow(ctx, c, client, o)
	}
	if err := once(ctx, client, o); err != nil {
		return false, err
	}
	<-ctx.Done() // the measuring program ends this process
	return true, nil
}

// once binds the pods that exist and have no node.
func once(ctx context.Context, client kubernetes.Interface, o Options) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods(o.Namespace).List(ctx, metav1.ListOptions{FieldSelector: unbound.String()})
	if err != nil {
		return err
	}
	turns := make(chan int)
	errs := make(chan error, len(pods.Items))
	var group sync.WaitGroup
	for range o.Workers {
		group.Go(func() {
			for i := range turns {
				pod := &pods.Items[i]
				if err := bind(ctx, client, pod.Namespace, pod.Name, pod.UID, nodes.Items[i%len(nodes.Items)].Name); err != nil {
					errs <- fmt.Errorf("bind %s: %w", pod.Name, err)
				}
			}
		})
	}
	for i := range pods.Items {
		turns <- i
	}
	close(turns)
	group.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// unbound selects pods without a node.
var unbound = fields.OneTermEqualSelector("spec.nodeName", "")

func bind(ctx context.Context, client kubernetes.Interface, namespace, name string, id types.UID, node string) error {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: id},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	return client.CoreV1().Pods(namespace).Bind(ctx, binding, metav1.CreateOptions{})
}

// waiting is the pods to bind, in the order of their arrival, and the nodes. mu guards all fields.
type waiting struct {
	mu    sync.Mutex
	some  *sync.Cond
	line  []*metav1.PartialObjectMetadata
	seen  map[types.UID]bool
	nodes []string
	turn  int
	over  bool
}

// follow binds pods as they arrive. A bind that the server refuses (for example because the pod is being deleted) is
// not repeated.
func follow(ctx context.Context, c *kube.Client, client kubernetes.Interface, o Options) error {
	w := &waiting{seen: map[types.UID]bool{}}
	w.some = sync.NewCond(&w.mu)
	gathering, err := c.Gathering(kube.GatherBursts)
	if err != nil {
		return err
	}
	_, nodes := c.Informer(kube.Nodes, kube.Selection{Keep: names}, cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { w.node(obj.(metav1.Object).GetName()) },
	})
	_, pods := gathering.Informer(kube.Pods, kube.Selection{Namespace: o.Namespace, Fields: unbound},
		cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { w.pod(obj.(*corev1.Pod)) },
			UpdateFunc: func(_, obj any) { w.pod(obj.(*corev1.Pod)) },
		})
	go nodes.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced) {
		return nil
	}
	go pods.RunWithContext(ctx)
	context.AfterFunc(ctx, w.end)
	var group sync.WaitGroup
	for range o.Workers {
		group.Go(func() {
			for {
				pod, node := w.next()
				if pod == nil {
					return
				}
				_ = bind(ctx, client, pod.Namespace, pod.Name, pod.UID, node) // not repeated, see above
			}
		})
	}
	group.Wait()
	return nil
}

// names returns the part of an object that is kept.
func names(obj any) any {
	o, ok := obj.(metav1.Object)
	if !ok {
		return obj
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
	}}
}

func (w *waiting) node(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = append(w.nodes, name)
	w.some.Broadcast()
}

// pod adds a pod without a node. The API refuses to bind a gated pod.
func (w *waiting) pod(p *corev1.Pod) {
	if len(p.Spec.SchedulingGates) > 0 || p.DeletionTimestamp != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[p.UID] {
		return
	}
	w.seen[p.UID] = true
	w.line = append(w.line, names(p).(*metav1.PartialObjectMetadata))
	w.some.Signal()
}

// next waits for a pod and a node; nil at the end.
func (w *waiting) next() (pod *metav1.PartialObjectMetadata, node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.over && (len(w.line) == 0 || len(w.nodes) == 0) {
		w.some.Wait()
	}
	if w.over {
		return nil, ""
	}
	pod, w.line = w.line[0], w.line[1:]
	w.turn++
	return pod, w.nodes[w.turn%len(w.nodes)]
}

func (w *waiting) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.some.Broadcast()
}
