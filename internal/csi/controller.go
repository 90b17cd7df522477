package csi

import (
	"context"
	"errors"
	"slices"
	"strconv"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/plimsoll-dev/plimsoll/internal/core/localvolume"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/csi/store"
)

// ControllerGetCapabilities lists the controller's optional calls.
func (d *Driver) ControllerGetCapabilities(
	context.Context, *spec.ControllerGetCapabilitiesRequest,
) (*spec.ControllerGetCapabilitiesResponse, error) {
	answer := &spec.ControllerGetCapabilitiesResponse{}
	for _, t := range []spec.ControllerServiceCapability_RPC_Type{
		spec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		spec.ControllerServiceCapability_RPC_LIST_VOLUMES,
		spec.ControllerServiceCapability_RPC_GET_CAPACITY,
		spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		spec.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		spec.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		spec.ControllerServiceCapability_RPC_CLONE_VOLUME,
		spec.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		spec.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		answer.Capabilities = append(answer.Capabilities, &spec.ControllerServiceCapability{
			Type: &spec.ControllerServiceCapability_Rpc{Rpc: &spec.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return answer, nil
}

// CreateVolume makes a volume.
func (d *Driver) CreateVolume(ctx context.Context, r *spec.CreateVolumeRequest) (*spec.CreateVolumeResponse, error) {
	if err := missing([2]string{"name", r.GetName()}); err != nil {
		return nil, err
	}
	wish, err := wishOf(r.GetVolumeCapabilities(), r.GetParameters())
	if err != nil {
		return nil, err
	}
	wish.Required = unit.Bytes(r.GetCapacityRange().GetRequiredBytes())
	wish.Limit = unit.Bytes(r.GetCapacityRange().GetLimitBytes())
	if err := d.checkTopology(r.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}
	source, err := d.sourceOf(r.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	v, err := runToEnd(ctx, func() (store.Entry, error) { return d.store.Create(r.Name, wish, source) })
	if err != nil {
		return nil, err
	}
	return &spec.CreateVolumeResponse{Volume: d.volume(v, r.GetVolumeContentSource())}, nil
}

func (d *Driver) volume(v store.Entry, source *spec.VolumeContentSource) *spec.Volume {
	return &spec.Volume{
		VolumeId:           v.ID,
		CapacityBytes:      int64(v.Size),
		ContentSource:      source,
		AccessibleTopology: []*spec.Topology{d.topology()},
	}
}

func (d *Driver) topology() *spec.Topology {
	return &spec.Topology{Segments: map[string]string{TopologyKey: d.o.Store.Node}}
}

// checkTopology returns an error if a volume is requested only for other nodes.
func (d *Driver) checkTopology(t *spec.TopologyRequirement) error {
	here := func(t *spec.Topology) bool { return t.GetSegments()[TopologyKey] == d.o.Store.Node }
	if len(t.GetRequisite()) == 0 || slices.ContainsFunc(t.GetRequisite(), here) {
		return nil
	}
	return status.Errorf(
		codes.ResourceExhausted, "volumes of this driver are on node %s, which is not among the requested nodes",
		d.o.Store.Node)
}

// sourceOf returns the ID of the volume or snapshot that a new volume is a copy of; empty: the volume begins empty.
func (d *Driver) sourceOf(c *spec.VolumeContentSource) (string, error) {
	switch {
	case c == nil:
		return "", nil
	case c.GetSnapshot() != nil:
		id := c.GetSnapshot().GetSnapshotId()
		_, err := d.store.Snapshot(id)
		return id, elsewhere(err)
	case c.GetVolume() != nil:
		id := c.GetVolume().GetVolumeId()
		_, err := d.store.Volume(id)
		return id, elsewhere(err)
	}
	return "", status.Error(codes.InvalidArgument, "content source: want a snapshot or a volume")
}

// elsewhere replaces the error of a source that is on another node by one after which the scheduler tries other nodes.
func elsewhere(err error) error {
	if errors.Is(err, store.ErrOther) {
		return status.Errorf(codes.ResourceExhausted, "%v: a copy can only be made on the node of its source", err)
	}
	return err
}

// wishOf returns the volume that capabilities and parameters request. A volume has all its capabilities at once, so
// they must agree.
func wishOf(capabilities []*spec.VolumeCapability, parameters map[string]string) (localvolume.Wish, error) {
	wish := localvolume.Wish{Parameters: parameters}
	if len(capabilities) == 0 {
		return wish, status.Error(codes.InvalidArgument, "volume capabilities are missing in the request")
	}
	for i, c := range capabilities {
		if err := checkAccess(c); err != nil {
			return wish, err
		}
		block := c.GetBlock() != nil
		fsType := c.GetMount().GetFsType()
		if i > 0 && (block != wish.Block || fsType != wish.FSType) {
			return wish, status.Error(codes.InvalidArgument,
				"volume capabilities: one volume cannot be a block device and a file system, or have two file systems")
		}
		wish.Block = block
		wish.FSType = fsType
	}
	return wish, nil
}

// checkAccess returns an error for a capability that no volume here has.
func checkAccess(c *spec.VolumeCapability) error {
	if c.GetBlock() == nil && c.GetMount() == nil {
		return status.Error(codes.InvalidArgument, "volume capability: want a block device or a file system")
	}
	mode := c.GetAccessMode().GetMode()
	switch mode {
	case spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return nil
	}
	return status.Errorf(
		codes.InvalidArgument, "access mode %v: a volume is on one node: use ReadWriteOnce or ReadWriteOncePod", mode)
}

// DeleteVolume removes a volume.
func (d *Driver) DeleteVolume(ctx context.Context, r *spec.DeleteVolumeRequest) (*spec.DeleteVolumeResponse, error) {
	if err := missing([2]string{"volume id", r.GetVolumeId()}); err != nil {
		return nil, err
	}
	_, err := runToEnd(ctx, func() (none, error) { return none{}, d.store.Delete(r.VolumeId) })
	if err != nil {
		return nil, err
	}
	return &spec.DeleteVolumeResponse{}, nil
}

type none struct{}

// ValidateVolumeCapabilities says whether a volume has capabilities.
func (d *Driver) ValidateVolumeCapabilities(
	_ context.Context, r *spec.ValidateVolumeCapabilitiesRequest,
) (*spec.ValidateVolumeCapabilitiesResponse, error) {
	if err := missing([2]string{"volume id", r.GetVolumeId()}); err != nil {
		return nil, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume capabilities are missing in the request")
	}
	v, err := d.store.Volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	wish, err := wishOf(r.VolumeCapabilities, r.GetParameters())
	if err == nil {
		err = localvolume.Same(wish, v.Plan(), v.Source, v.Source)
	}
	if err != nil {
		return &spec.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &spec.ValidateVolumeCapabilitiesResponse{Confirmed: &spec.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: r.VolumeCapabilities,
		Parameters:         r.GetParameters(),
		VolumeContext:      r.GetVolumeContext(),
	}}, nil
}

// page returns the requested part of a list, and the token of the next part. A token is the number of a part's first
// entry.
func page[T any](all []T, token string, most int32) ([]T, string, error) {
	first := 0
	if token != "" {
		var err error
		if first, err = strconv.Atoi(token); err != nil || first < 0 || first > len(all) {
			return nil, "", status.Errorf(
				codes.Aborted, "starting token %q: not one of this list: list from the beginning", token)
		}
	}
	if most < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "max entries %d: below zero", most)
	}
	last := len(all)
	if most > 0 {
		last = min(last, first+int(most))
	}
	if last == len(all) {
		return all[first:last], "", nil
	}
	return all[first:last], strconv.Itoa(last), nil
}

// ListVolumes lists the volumes of this node.
func (d *Driver) ListVolumes(_ context.Context, r *spec.ListVolumesRequest) (*spec.ListVolumesResponse, error) {
	volumes, next, err := page(d.store.Volumes(), r.GetStartingToken(), r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	answer := &spec.ListVolumesResponse{NextToken: next}
	for _, v := range volumes {
		answer.Entries = append(answer.Entries, &spec.ListVolumesResponse_Entry{Volume: d.volume(v, nil)})
	}
	return answer, nil
}

// GetCapacity returns how large a new volume may be.
func (d *Driver) GetCapacity(_ context.Context, r *spec.GetCapacityRequest) (*spec.GetCapacityResponse, error) {
	nothing := &spec.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(0)}
	if t := r.GetAccessibleTopology(); t != nil && t.GetSegments()[TopologyKey] != d.o.Store.Node {
		return nothing, nil
	}
	machine, err := d.store.Machine()
	if err != nil {
		return nil, err
	}
	wish := localvolume.Wish{Parameters: r.GetParameters()}
	if len(r.GetVolumeCapabilities()) > 0 {
		if wish, err = wishOf(r.GetVolumeCapabilities(), r.GetParameters()); err != nil {
			return nothing, nil
		}
	}
	if !localvolume.Possible(wish, machine) {
		return nothing, nil
	}
	free := int64(machine.Space.Free())
	return &spec.GetCapacityResponse{AvailableCapacity: free, MaximumVolumeSize: wrapperspb.Int64(free)}, nil
}

// ControllerExpandVolume makes a volume larger.
func (d *Driver) ControllerExpandVolume(
	ctx context.Context, r *spec.ControllerExpandVolumeRequest,
) (*spec.ControllerExpandVolumeResponse, error) {
	if err := missing([2]string{"volume id", r.GetVolumeId()}); err != nil {
		return nil, err
	}
	if r.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "capacity range is missing in the request")
	}
	required := unit.Bytes(r.GetCapacityRange().GetRequiredBytes())
	limit := unit.Bytes(r.GetCapacityRange().GetLimitBytes())
	v, err := runToEnd(ctx, func() (store.Entry, error) { return d.store.Expand(r.VolumeId, required, limit) })
	if err != nil {
		return nil, err
	}
	return &spec.ControllerExpandVolumeResponse{
		CapacityBytes:         int64(v.Size),
		NodeExpansionRequired: v.Backing == localvolume.Image && !v.Block,
	}, nil
}

// CreateSnapshot copies a volume as it is now.
func (d *Driver) CreateSnapshot(
	ctx context.Context, r *spec.CreateSnapshotRequest,
) (*spec.CreateSnapshotResponse, error) {
	if err := missing([2]string{"name", r.GetName()}, [2]string{"source volume id", r.GetSourceVolumeId()}); err != nil {
		return nil, err
	}
	for key := range r.GetParameters() {
		return nil, status.Errorf(codes.InvalidArgument, "parameter %q of the VolumeSnapshotClass: unknown: want none", key)
	}
	e, err := runToEnd(ctx, func() (store.Entry, error) { return d.store.TakeSnapshot(r.Name, r.SourceVolumeId) })
	if err != nil {
		return nil, err
	}
	return &spec.CreateSnapshotResponse{Snapshot: snapshot(e)}, nil
}

func snapshot(e store.Entry) *spec.Snapshot {
	return &spec.Snapshot{
		SnapshotId:     e.ID,
		SourceVolumeId: e.Source,
		SizeBytes:      int64(e.Size), // the size of the smallest volume that can be made from it
		CreationTime:   timestamppb.New(e.Created),
		ReadyToUse:     true,
	}
}

// DeleteSnapshot removes a snapshot.
func (d *Driver) DeleteSnapshot(
	ctx context.Context, r *spec.DeleteSnapshotRequest,
) (*spec.DeleteSnapshotResponse, error) {
	if err := missing([2]string{"snapshot id", r.GetSnapshotId()}); err != nil {
		return nil, err
	}
	_, err := runToEnd(ctx, func() (none, error) { return none{}, d.store.DeleteSnapshot(r.SnapshotId) })
	if err != nil {
		return nil, err
	}
	return &spec.DeleteSnapshotResponse{}, nil
}

// ListSnapshots lists the snapshots of this node.
func (d *Driver) ListSnapshots(_ context.Context, r *spec.ListSnapshotsRequest) (*spec.ListSnapshotsResponse, error) {
	var wanted []store.Entry
	for _, e := range d.store.Snapshots() {
		if (r.GetSnapshotId() == "" || r.GetSnapshotId() == e.ID) &&
			(r.GetSourceVolumeId() == "" || r.GetSourceVolumeId() == e.Source) {
			wanted = append(wanted, e)
		}
	}
	snapshots, next, err := page(wanted, r.GetStartingToken(), r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	answer := &spec.ListSnapshotsResponse{NextToken: next}
	for _, e := range snapshots {
		answer.Entries = append(answer.Entries, &spec.ListSnapshotsResponse_Entry{Snapshot: snapshot(e)})
	}
	return answer, nil
}

// GetSnapshot returns one snapshot.
func (d *Driver) GetSnapshot(_ context.Context, r *spec.GetSnapshotRequest) (*spec.GetSnapshotResponse, error) {
	if err := missing([2]string{"snapshot id", r.GetSnapshotId()}); err != nil {
		return nil, err
	}
	e, err := d.store.Snapshot(r.SnapshotId)
	if err != nil {
		return nil, err
	}
	return &spec.GetSnapshotResponse{Snapshot: snapshot(e)}, nil
}
