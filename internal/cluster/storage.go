package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/host/loop"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Storage: our CSI driver keeps volumes in the state directory, and upstream's controllers (storage/) create a volume
// when a claim needs one. Both are children and not pods: as pods each would need an image, and more access to the host
// than any other add-on. Volumes survive `down`, and `down --purge` removes them.

// snapshotClass is installed when the API server serves its kind, which a CustomResourceDefinition defines.
const snapshotClass = `apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata:
  name: plimsoll
  annotations: {snapshot.storage.kubernetes.io/is-default-class: "true"}
driver: ` + driverName + `
deletionPolicy: Delete
`

// addonCSI is the name of the add-on.
const addonCSI = "csi"

// driverName is the name of the driver in the API.
const driverName = "csi.plimsoll.dev"

// The programs of the add-on, and the directory of the definitions of VolumeSnapshots. The build puts them beside this
// program.
const (
	driverProgram      = "plimsoll-csi"
	controllersProgram = "plimsoll-storage"
	definitionsDir     = "definitions"
)

// formatProgram makes the file systems of volumes.
const formatProgram = "mkfs.ext4"

// driverNodeMax is the longest name of a node that the driver accepts: the value of a label.
const driverNodeMax = 63

// beside returns a path in the directory of this program, where the build puts what belongs to it.
func beside(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	return filepath.Join(filepath.Dir(self), name), nil
}

// findStorage finds the programs of the add-on.
func (b *builder) findStorage() error {
	if !b.o.has(addonCSI) {
		return nil
	}
	if !isProgram(formatProgram) {
		return fmt.Errorf("find %s: it is not on this machine: install with: apt-get install -y --no-install-recommends "+
			"e2fsprogs; or leave volumes out with --without %s", formatProgram, addonCSI)
	}
	var err error
	for _, p := range []struct {
		name string
		path *string
	}{{driverProgram, &b.driver}, {controllersProgram, &b.controllers}} {
		if *p.path, err = beside(p.name); err != nil {
			return err
		}
		if err := unix.Access(*p.path, unix.X_OK); err != nil {
			return fmt.Errorf("find %s: %s: %w: build it with `make bin/%s`, or leave volumes out with --without %s",
				p.name, *p.path, err, p.name, addonCSI)
		}
	}
	return nil
}

func (l layout) volumes() string   { return l.state("volumes") }
func (l layout) csiSocket() string { return l.run("csi.sock") }

// pluginsRegistry is where the agent, like the kubelet, looks for drivers.
func (l layout) pluginsRegistry() string { return filepath.Join(l.agentRoot(), "plugins_registry") }

func (b builder) csiDriver() supervise.Spec {
	argv := []string{
		b.driver,
		"--dir=" + b.volumes(),
		"--node-name=" + b.o.NodeName,
		"--endpoint=" + b.csiSocket(),
		"--registration-dir=" + b.pluginsRegistry(),
	}
	if b.o.VolumesMax > 0 {
		argv = append(argv, "--volumes-max="+strconv.FormatInt(b.o.VolumesMax, 10))
	}
	return supervise.Spec{
		Name:  childCSIDriver,
		Argv:  argv,
		Env:   environment(),
		Dir:   b.o.RunDir,
		Log:   b.log(childCSIDriver),
		Grace: graceComponent,
	}
}

func (b builder) storage() supervise.Spec {
	kubeconfig := b.storageKubeconfig()
	argv := []string{
		b.controllers,
		"--kubeconfig=" + kubeconfig,
		"--csi-address=" + b.csiSocket(),
		"--node-name=" + b.o.NodeName,
	}
	if !b.o.joined() {
		argv = append(argv, "--snapshot-controller") // only the machine with the control plane runs it
	}
	inputs := []string{kubeconfig}
	if kubeconfig == b.kubeconfig(whoStorage) {
		inputs = append(inputs, b.certificateOf(whoStorage))
	}
	return supervise.Spec{
		Name:   childStorage,
		Argv:   argv,
		Env:    environment(),
		Dir:    b.o.RunDir,
		Inputs: inputs,
		Log:    b.log(childStorage),
		Grace:  graceComponent,
	}
}

// definitions returns the CustomResourceDefinitions of VolumeSnapshots as YAML documents.
func definitions() ([]string, error) {
	dir, err := beside(definitionsDir)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no file in %s: build them with `make bin/%s`", dir, controllersProgram)
	}
	var all []string
	for _, path := range files {
		text, read := os.ReadFile(path)
		err = errors.Join(err, read)
		all = append(all, documents(string(text))...)
	}
	if err != nil {
		return nil, fmt.Errorf("find the definitions of VolumeSnapshots: %w", err)
	}
	return all, nil
}

// installDefinitions applies the definitions of VolumeSnapshots, if the instance has the add-on. They stay when the
// add-on is left out: if they were removed, the API server would remove the existing snapshots.
func (l layout) installDefinitions(ctx context.Context, client *kube.Client) error {
	if !l.o.has(addonCSI) {
		return nil
	}
	all, err := definitions()
	if err != nil {
		return err
	}
	return applyObjects(ctx, client, all)
}

// installSnapshotClass applies the class of snapshots, or removes it. It fails until the API server serves the kind.
func installSnapshotClass(ctx context.Context, client *kube.Client, o Options) error {
	if o.has(addonCSI) {
		return applyObjects(ctx, client, documents(snapshotClass))
	}
	return removeObjects(ctx, client, documents(snapshotClass))
}

// awaitDriver waits until a node has the driver. Until then no volume is created for a pod, and a snapshot would never
// be taken, because its controller does not know on which node the volume is. A driver that is late is no reason to
// fail: the cluster can be used without it.
func (c *cluster) awaitDriver(ctx context.Context, client *kube.Client, node string, children ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, addonsTimeout, fmt.Errorf("not within %s", addonsTimeout))
	defer cancel()
	registered := func(ctx context.Context) error { return driverRegistered(ctx, client, node) }
	return progress.Step(c.sink, "volumes of "+node, func() (string, error) {
		err := c.await(ctx, "the CSI driver", registered, append(children, childAPIServer)...)
		if err == nil || errors.Is(context.Cause(ctx), context.Canceled) {
			return driverName, err
		}
		c.logger.Warn("the CSI driver is late", "err", err)
		return "late: " + err.Error(), nil
	})
}

// driverRegistered returns nil if the node's CSINode lists the driver, which the agent writes.
func driverRegistered(ctx context.Context, client *kube.Client, node string) error {
	object := &storagev1.CSINode{}
	if err := client.Get(ctx, kube.CSINodes, "", node, object); err != nil {
		return err
	}
	for _, d := range object.Spec.Drivers {
		if d.Name == driverName {
			return nil
		}
	}
	return fmt.Errorf("node %s does not have driver %s yet", node, driverName)
}

// releaseVolumes detaches the block devices of volumes, once no pod is left.
func (l layout) releaseVolumes() error {
	if err := loop.DetachBelow(l.volumes()); err != nil {
		return fmt.Errorf("release volumes: %w", err)
	}
	return nil
}
