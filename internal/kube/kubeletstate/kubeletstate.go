// Package kubeletstate reads and writes the kubelet's checkpoint files: which CPUs, memory and devices are assigned to
// containers, and which resources are allocated to pods.
//
// # Model
//
// A kubelet that starts on a node with running pods reads in these files what it assigned to them. So an agent that
// takes a node over reads them too, and writes them so that a kubelet can take the node over again:
//
//	cpu_manager_state                           CPUs
//	memory_manager_state                        Memory
//	device-plugins/kubelet_internal_checkpoint  Devices
//	allocated_pods_state, actuated_pods_state   Allocations
//
// Each has a checksum over the text of upstream's Go types (kube/kubelethash).
//
// # Invariants
//
//   - A Parse function accepts what Kubernetes 1.36.3 accepts, and nothing else, except for the two kinds of files
//     below.
//   - A wrong checksum, an unknown field or a value of the wrong kind is an error: an agent that guessed would give one
//     pod's CPUs to another.
//
// # What it does not read
//
// Files of kubelets before 1.18 (entries by container ID), and of kubelets with the alpha gate PodLevelResourceManagers
// that assigned something to a pod as a whole. The package opens no file, and decides nothing.
package kubeletstate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubelethash"
)

// The files' names below the kubelet's root directory.
const (
	CPUsFile      = "cpu_manager_state"
	MemoryFile    = "memory_manager_state"
	AllocatedFile = "allocated_pods_state" // the resources that pods were last judged to fit with
	ActuatedFile  = "actuated_pods_state"  // the resources that the cgroups were last set to
)

// DevicesFile is the file's name in the directory of the device plugins' sockets.
const DevicesFile = "kubelet_internal_checkpoint"

// checksum has the name of upstream's type, because checksums are computed over texts that contain it.
type checksum uint64

// verify compares a checksum with that of a value.
func verify(has checksum, value any, names map[reflect.Type]string) error {
	if want := checksum(kubelethash.Sum(value, names)); has != want {
		return fmt.Errorf("checksum %d, the content has %d: it was cut off, changed by hand, or written with the feature "+
			"gate PodLevelResourceManagers", has, want)
	}
	return nil
}

// decode reads one JSON value, and nothing else, without unknown fields.
func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the checkpoint")
	}
	return nil
}

// encode writes plain data, which cannot fail.
func encode(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("kubeletstate: encode %T: %v", value, err))
	}
	return text
}

// Policies of the CPU manager.
const (
	CPUsNone   = "none"
	CPUsStatic = "static"
)

// CPUs is the CPU manager's checkpoint.
type CPUs struct {
	Policy    string                          // of the kubelet's configuration
	Shared    idset.Set                       // CPUs of no container; empty without the static policy
	Exclusive map[string]map[string]idset.Set // by pod UID and container
}

// cpusFile is version 2 of the file, which a kubelet without alpha gates writes since 1.18.
type cpusFile struct {
	PolicyName    string                       `json:"policyName"`
	DefaultCPUSet string                       `json:"defaultCpuSet"`
	Entries       map[string]map[string]string `json:"entries,omitempty"`
	Checksum      checksum                     `json:"checksum"`
}

var cpusNames = map[reflect.Type]string{
	reflect.TypeFor[cpusFile](): "state.CPUManagerCheckpoint",
	reflect.TypeFor[checksum](): "checksum.Checksum",
}

// ParseCPUs reads the file cpu_manager_state.
func ParseCPUs(text []byte) (CPUs, error) {
	f := cpusFile{Entries: map[string]map[string]string{}}
	if err := decode(text, &f); err != nil {
		return CPUs{}, err
	}
	has := f.Checksum
	f.Checksum = 0
	if has != 0 { // files of old kubelets have none, and are accepted by upstream
		if err := verify(has, &f, cpusNames); err != nil {
			return CPUs{}, err
		}
	}
	out := CPUs{Policy: f.PolicyName, Exclusive: map[string]map[string]idset.Set{}}
	var err error
	if out.Shared, err = idset.Parse(f.DefaultCPUSet); err != nil {
		return CPUs{}, fmt.Errorf("defaultCpuSet: %w", err)
	}
	for pod, containers := range f.Entries {
		out.Exclusive[pod] = map[string]idset.Set{}
		for container, list := range containers {
			if out.Exclusive[pod][container], err = idset.Parse(list); err != nil {
				return CPUs{}, fmt.Errorf("entries of pod %.80q, container %.80q: %w", pod, container, err)
			}
		}
	}
	return out, nil
}

// Marshal returns the file cpu_manager_state.
func (c CPUs) Marshal() []byte {
	f := cpusFile{PolicyName: c.Policy, DefaultCPUSet: c.Shared.String(), Entries: map[string]map[string]string{}}
	for pod, containers := range c.Exclusive {
		f.Entries[pod] = map[string]string{}
		for container, cpus := range containers {
			f.Entries[pod][container] = cpus.String()
		}
	}
	f.Checksum = checksum(kubelethash.Sum(&f, cpusNames))
	return encode(f)
}
