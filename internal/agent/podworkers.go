package agent

import (
	"context"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/dns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/env"
	"github.com/plimsoll-dev/plimsoll/internal/agent/hook"
	"github.com/plimsoll-dev/plimsoll/internal/agent/objectcache"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podcert"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/agent/trustbundle"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/host/sysfs"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// preparePods prepares the pod workers and what they need.
func (a *Agent) preparePods(ctx context.Context) error {
	c := a.o.Config
	hostIPs, err := a.hostIPs()
	if err != nil {
		return err
	}
	a.services = watchServices(a.client)
	objects, err := a.prepareVolumes(ctx)
	if err != nil {
		return err
	}
	starts := a.o.Starts
	if starts == 0 {
		starts = StartsPerCPU * runtime.NumCPU()
	}
	suits, err := a.suits(ctx)
	if err != nil {
		return err
	}
	o := podOptions(c)
	if o.Images, err = a.preparePulls(ctx, objects); err != nil {
		return err
	}
	o.Node = a.o.NodeName
	o.RootDir = a.o.RootDir
	o.HostIPs = hostIPs
	o.Client = a.client
	o.Runtime = a.runtime
	o.RuntimeName = a.runtimeName
	o.Recorder = a.recorder
	o.Metrics = a.metrics
	o.Volumes = a.volumes
	o.Env = &env.Builder{Objects: objects, Services: a.services.in}
	o.DNS = dns.Resolver{
		ClusterDomain: c.ClusterDomain,
		ClusterDNS:    c.ClusterDNS,
		ResolvConf:    *c.ResolverConfig,
		NodeIPs:       hostIPs,
	}
	o.Allocatable = a.allocatable
	o.Groups = a.groups
	o.Assignments = a.assignments
	a.prepareUsers(ctx)
	o.Users = a.users
	o.UserNamespaces = a.hasUsers
	o.Devices = a.plugins
	o.CSIVolumes = true
	admit := a.admission(ctx)
	o.Admission = admit
	o.Judged = admit.Judged
	o.Journal = a.decisions
	o.Trace = a.tracing
	o.QOSClass = func(pod *corev1.Pod) corev1.PodQOSClass { return corev1.PodQOSClass(a.groups.class(pod)) }
	o.Starts = starts
	o.Relist = relist
	o.Probes = probe.New(ctx, probe.Options{
		Runtime: a.runtime, Recorder: a.recorder, Registry: a.metrics.Probes,
		Changed: func(uid types.UID) { a.pods.Resync(uid) },
		Turned:  a.noteProbe,
	})
	o.Hooks = hook.Runner{Runtime: a.runtime, Recorder: a.recorder, Metrics: a.metrics}
	o.Suits = suits
	o.MaskedPaths = sysfs.Default.ThermalThrottles()
	o.Evicted = func(uid types.UID) (pods.Eviction, bool) { return a.guard.Recall(uid) }
	if a.pods, err = pods.New(o); err != nil {
		return err
	}
	a.holdEvents(a.pods.Starting) // four Events for each pod that starts would slow the starts
	return nil
}

// prepareVolumes prepares the volumes of pods. It returns the cache of the ConfigMaps and Secrets that pods use.
func (a *Agent) prepareVolumes(ctx context.Context) (*objectcache.Cache, error) {
	c := a.o.Config
	var manager *volume.Manager
	changed := func(uid types.UID) {
		manager.Changed(uid)
		a.pods.Retry(uid)
	}
	objects := objectcache.New(ctx, a.client, changed)
	o := volume.Options{
		RootDir:       a.o.RootDir,
		ClusterDomain: c.ClusterDomain,
		Objects:       objects,
		Tokens:        volume.KubeTokens(a.client),
		Allocatable:   a.allocatable,
		Claims:        volume.KubeClaims(a.client),
		NodeLabels:    a.nodeLabels,
		MaxPods:       int(c.MaxPods),
		Took: func(plugin, operation string, took time.Duration, err error) {
			a.metrics.ObserveStorage(plugin, operation, false, took, err)
		},
		CSI:   a.csiVolumes,
		Usage: a.volumeStats,
	}
	if kubeletconfig.ReadsTrustBundles(c) {
		o.Bundles = trustbundle.New(ctx, a.client, changed)
	}
	if kubeletconfig.RequestsPodCertificates(c) {
		certificates := podcert.New(ctx, podcert.Options{
			Node:     a.o.NodeName,
			API:      a.client,
			NodeUID:  a.nodeUID,
			Recorder: a.recorder,
			Changed:  changed,
		})
		a.metrics.Registry.MustRegister(certificates)
		o.Certificates = certificates
	}
	manager, err := volume.New(ctx, o)
	if err != nil {
		return nil, err
	}
	a.volumes = manager
	a.metrics.Registry.MustRegister(manager)
	return objects, nil
}
