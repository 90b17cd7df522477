// Command plimsoll-storage is upstream's controllers around a CSI driver, in one process: those of external-provisioner
// (volumes, clones, restored snapshots, capacity), external-resizer, external-snapshotter's sidecar, and, once in a
// cluster, its snapshot-controller.
//
//	plimsoll-storage --kubeconfig storage.kubeconfig --csi-address /run/plimsoll/csi.sock --node-name vm \
//	  --snapshot-controller
//
// They are linked from their published modules. As four programs, each would have a client, a cache of all claims and
// volumes, and the same libraries; here they share them. external-attacher is left out, because the driver needs no
// attaching (attachRequired false). node-driver-registrar is left out, because the driver registers itself. The
// controllers are unchanged; this program decides only which of them run, and for which objects.
//
// One process runs on each node, beside the node's driver, and handles only that node's volumes: the provisioner and
// the snapshotter by their own mode for that (--node-deployment), the resizer by a filter on the node affinity of
// volumes. So no leader is elected. The process ends when the driver's connection is lost, and when the Node is
// deleted. Its supervisor starts it again.
//
// This is a separate module so that no other program links the generated clients.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/kubernetes-csi/csi-lib-utils/connection"
	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotscheme "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/scheme"
)

// options are the flags.
type options struct {
	kubeconfig         string
	address            string // of the driver's socket
	node               string // name of this node
	namespace          string // of the CSIStorageCapacity objects
	snapshotController bool   // run the cluster's snapshot-controller, too
}

// Bounds of what the controllers do. Where no origin is named, the value is the default of upstream's program.
const (
	retryMin = time.Second
	retryMax = time.Minute // chosen; upstream's is 5 minutes: room on a disk that was full is noticed sooner
	// callTimeout bounds a call of the driver. A copy continues in the driver after its call has ended, and the next
	// call finds it. So this says how often the driver is asked about a long copy.
	callTimeout    = time.Minute // chosen
	capacityPeriod = time.Minute // between two readings of the capacity
	resync         = 15 * time.Minute
	workers        = 4   // of each controller; chosen: all volumes are on one disk
	qps            = 50  // chosen: requests a second to the API server, of all controllers together
	burst          = 100 // chosen
)

// shared is what the controllers have in common.
type shared struct {
	options
	config    *rest.Config
	client    kubernetes.Interface
	snapshots snapshotclient.Interface
	objects   informers.SharedInformerFactory
	driver    *grpc.ClientConn
	name      string                // of the driver
	owner     metav1.OwnerReference // this node, as the owner of objects
}

func main() {
	var o options
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file")
	flag.StringVar(&o.address, "csi-address", "", "path of the driver's socket")
	flag.StringVar(&o.node, "node-name", "", "name of this node, as its Node object has it")
	flag.StringVar(&o.namespace, "namespace", "kube-system", "namespace of the CSIStorageCapacity objects")
	flag.BoolVar(
		&o.snapshotController, "snapshot-controller", false,
		"run the cluster's snapshot-controller, too; exactly one process of a cluster must do that")
	klog.InitFlags(nil)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "plimsoll-storage:", err)
		os.Exit(2)
	}
	if err := run(ctx, o); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "plimsoll-storage ends")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

func (o options) check() error {
	var problems []error
	for _, f := range [][2]string{
		{"kubeconfig", o.kubeconfig},
		{"csi-address", o.address},
		{"node-name", o.node},
		{"namespace", o.namespace},
	} {
		if f[1] == "" {
			problems = append(problems, fmt.Errorf("--%s is missing", f[0]))
		}
	}
	if flag.NArg() > 0 {
		problems = append(problems, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	return errors.Join(problems...)
}

func run(ctx context.Context, o options) error {
	s := &shared{options: o}
	var err error
	if s.config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
		return err
	}
	s.config.QPS = qps
	s.config.Burst = burst
	s.config.UserAgent = "plimsoll-storage"
	core := rest.CopyConfig(s.config)
	core.ContentType = runtime.ContentTypeProtobuf
	if s.client, err = kubernetes.NewForConfig(core); err != nil {
		return err
	}
	if s.snapshots, err = snapshotclient.NewForConfig(s.config); err != nil {
		return err
	}
	if err := snapshotscheme.AddToScheme(scheme.Scheme); err != nil { // for Events about snapshots
		return err
	}
	s.objects = informers.NewSharedInformerFactory(s.client, resync)
	if err := s.connect(ctx); err != nil {
		return err
	}
	defer s.driver.Close()
	gone, err := s.awaitNode(ctx)
	if err != nil {
		return err
	}
	return s.control(ctx, gone)
}

// connect waits for the driver. When the connection is lost, the process ends: a new driver may have other
// capabilities.
func (s *shared) connect(ctx context.Context) (err error) {
	manager := metrics.NewCSIMetricsManager("")
	s.driver, err = connection.Connect(
		ctx, "unix://"+s.address, manager, connection.OnConnectionLoss(connection.ExitOnConnectionLoss()))
	if err != nil {
		return fmt.Errorf("connect to the driver: %w", err)
	}
	if err := rpc.ProbeForever(ctx, s.driver, callTimeout); err != nil {
		return fmt.Errorf("wait for the driver: %w", err)
	}
	if s.name, err = rpc.GetDriverName(ctx, s.driver); err != nil {
		return fmt.Errorf("ask the driver for its name: %w", err)
	}
	return nil
}

// control runs the controllers until ctx ends or the Node is gone.
func (s *shared) control(ctx context.Context, gone <-chan struct{}) error {
	var controllers []func(context.Context)
	type maker func(context.Context) (func(context.Context), error)
	for _, make := range []maker{s.provisioner, s.resizer, s.snapshotter, s.cluster} {
		c, err := make(ctx)
		if err != nil {
			return err
		}
		if c != nil {
			controllers = append(controllers, c)
		}
	}
	s.objects.Start(ctx.Done())
	for kind, synced := range s.objects.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("read %v: the process was ended before the first list was complete", kind)
		}
	}
	for _, c := range controllers {
		go c(ctx)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-gone:
		return fmt.Errorf("node %s was deleted: the next process waits until it is registered again", s.node)
	}
}

// limiter returns the back-off of a controller's objects.
func limiter() workqueue.TypedRateLimiter[string] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax)
}
