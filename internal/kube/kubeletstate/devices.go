package kubeletstate

import (
	"cmp"
	"errors"
	"reflect"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubelethash"
)

// Devices is the device manager's checkpoint.
type Devices struct {
	Given      []Given
	Registered map[string][]string // healthy devices of connected plugins, by resource
}

// NoNode is the NUMA node of devices that are near none.
const NoNode = -1

// Given is the devices of one resource that are assigned to a container.
type Given struct {
	Pod, Container, Resource string
	IDs                      map[int64][]string // by NUMA node, or NoNode
	Needs                    []byte             // the plugin's ContainerAllocateResponse as protobuf
}

type devicesFile struct {
	Data     devicesData
	Checksum checksum
}

type devicesData struct {
	PodDeviceEntries  []deviceEntry
	RegisteredDevices map[string][]string
}

type devicesPerNUMA map[int64][]string

type deviceEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     devicesPerNUMA
	AllocResp     []byte
}

var devicesNames = map[reflect.Type]string{
	reflect.TypeFor[devicesData]():    "checkpoint.checkpointData",
	reflect.TypeFor[deviceEntry]():    "checkpoint.PodDevicesEntry",
	reflect.TypeFor[devicesPerNUMA](): "checkpoint.DevicesPerNUMA",
}

// ParseDevices reads the file kubelet_internal_checkpoint.
func ParseDevices(text []byte) (Devices, error) {
	f := devicesFile{Data: devicesData{PodDeviceEntries: []deviceEntry{}, RegisteredDevices: map[string][]string{}}}
	if err := decode(text, &f); err != nil {
		return Devices{}, err
	}
	if err := verify(f.Checksum, f.Data, devicesNames); err != nil {
		return Devices{}, err
	}
	out := Devices{Registered: f.Data.RegisteredDevices}
	for _, e := range f.Data.PodDeviceEntries {
		if e.PodUID == "" || e.ContainerName == "" || e.ResourceName == "" {
			return Devices{}, errors.New("an entry without PodUID, ContainerName or ResourceName")
		}
		out.Given = append(out.Given, Given{
			Pod: e.PodUID, Container: e.ContainerName, Resource: e.ResourceName, IDs: e.DeviceIDs, Needs: e.AllocResp,
		})
	}
	return out, nil
}

// Marshal returns the file kubelet_internal_checkpoint.
func (d Devices) Marshal() []byte {
	f := devicesFile{Data: devicesData{RegisteredDevices: d.Registered}}
	for _, g := range d.Given {
		f.Data.PodDeviceEntries = append(f.Data.PodDeviceEntries, deviceEntry{
			PodUID: g.Pod, ContainerName: g.Container, ResourceName: g.Resource, DeviceIDs: g.IDs, AllocResp: g.Needs,
		})
	}
	slices.SortFunc(f.Data.PodDeviceEntries, func(a, b deviceEntry) int {
		return cmp.Or(cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.ContainerName, b.ContainerName),
			cmp.Compare(a.ResourceName, b.ResourceName))
	})
	f.Checksum = checksum(kubelethash.Sum(f.Data, devicesNames))
	return encode(f)
}
