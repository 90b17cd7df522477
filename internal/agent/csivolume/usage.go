package csivolume

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/volumestats"
	hostcsi "github.com/plimsoll-dev/plimsoll/internal/host/csi"
)

// CapabilityCondition is the capability VOLUME_CONDITION of a node service. CSI 1.13 has neither it nor the message
// VolumeCondition; the kubelet (1.36, feature gate CSIVolumeHealth) has both from CSI 1.9.
const CapabilityCondition csi.NodeServiceCapability_RPC_Type = 4

// Numbers of fields in CSI 1.9: volume_condition of NodeGetVolumeStatsResponse, and those of VolumeCondition.
const (
	fieldCondition = 2
	fieldAbnormal  = 1
	fieldMessage   = 2
)

// Usage asks a volume's driver how full the volume is. It returns volumestats.ErrNone if the driver does not report it.
func (k *Manager) Usage(ctx context.Context, uid types.UID, s *Source) (volumestats.Usage, error) {
	driver, there := k.Drivers.Driver(s.Driver)
	switch {
	case !there:
		return volumestats.Usage{}, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", s.Driver)
	case !driver.Can[csi.NodeServiceCapability_RPC_GET_VOLUME_STATS]:
		return volumestats.Usage{}, volumestats.ErrNone
	}
	if s.migrated {
		ctx = hostcsi.Migrated(ctx)
	}
	answer, err := driver.Node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{
		VolumeId:   s.Handle,
		VolumePath: k.target(s.id, uid),
	})
	if err != nil {
		return volumestats.Usage{}, err
	}
	return usageOf(answer, driver.Can[CapabilityCondition])
}

// usageOf translates a driver's answer. As in the kubelet, the last of two entries of one unit counts, and unknown
// units are left out.
func usageOf(answer *csi.NodeGetVolumeStatsResponse, conditions bool) (u volumestats.Usage, err error) {
	if conditions {
		if u.Health, err = healthOf(answer.ProtoReflect().GetUnknown()); err != nil {
			return u, err
		}
	}
	if len(answer.GetUsage()) == 0 && !conditions {
		return u, errors.New("the driver says that it succeeded, and its answer has no usage")
	}
	for _, usage := range answer.GetUsage() {
		switch usage.GetUnit() {
		case csi.VolumeUsage_BYTES:
			u.Capacity = unit.Bytes(usage.Total)
			u.Available = unit.Bytes(usage.Available)
			u.Used = unit.Bytes(usage.Used)
		case csi.VolumeUsage_INODES:
			u.Inodes = usage.Total
			u.InodesFree = usage.Available
			u.InodesUsed = usage.Used
		}
	}
	return u, nil
}

// healthOf reads a volume's condition from the fields that this version of CSI does not know. Without such a field the
// condition is normal.
func healthOf(fields []byte) (*volumestats.Health, error) {
	h := &volumestats.Health{}
	message, err := lastOf(fields, fieldCondition, protowire.BytesType)
	if err != nil || message == nil {
		return h, err
	}
	condition, _ := protowire.ConsumeBytes(message)
	abnormal, err := lastOf(condition, fieldAbnormal, protowire.VarintType)
	if err != nil {
		return nil, err
	}
	if abnormal != nil {
		value, _ := protowire.ConsumeVarint(abnormal)
		h.Abnormal = protowire.DecodeBool(value)
	}
	text, err := lastOf(condition, fieldMessage, protowire.BytesType)
	if err != nil {
		return nil, err
	}
	if text != nil {
		value, _ := protowire.ConsumeString(text)
		h.Message = value
	}
	return h, nil
}

// lastOf returns the encoded value of the last field of a number and type; nil: there is none.
func lastOf(fields []byte, number protowire.Number, kind protowire.Type) (value []byte, err error) {
	for len(fields) > 0 {
		n, t, tag := protowire.ConsumeTag(fields)
		if tag < 0 {
			return nil, fmt.Errorf("read the volume's condition: %w", protowire.ParseError(tag))
		}
		size := protowire.ConsumeFieldValue(n, t, fields[tag:])
		if size < 0 {
			return nil, fmt.Errorf("read the volume's condition: %w", protowire.ParseError(size))
		}
		if n == number && t == kind {
			value = fields[tag : tag+size]
		}
		fields = fields[tag+size:]
	}
	return value, nil
}
