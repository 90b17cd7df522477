package csinode

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Entry is a driver's entry of the CSINode object.
type Entry struct {
	Name         string
	NodeID       string
	TopologyKeys []string // sorted
	Count        int32    // of volumes; 0: no limit is known
}

// Merge returns the entries that the object should have next, and whether they differ from those that it has. Entries
// of other drivers stay, in their order. In one write the API accepts no other node ID and no other topology keys in an
// entry: an entry that must change so is left out, and the next Merge adds it again.
func Merge(there []Entry, drivers map[string]Info, removed []string) ([]Entry, bool) {
	var out []Entry
	done := map[string]bool{}
	for _, e := range there {
		info, ours := drivers[e.Name]
		if !ours && !slices.Contains(removed, e.Name) {
			out = append(out, e)
		}
		if !ours {
			continue
		}
		done[e.Name] = true
		if want := entryOf(e.Name, info); e.becomes(want) {
			out = append(out, want)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(drivers)) {
		if !done[name] {
			out = append(out, entryOf(name, drivers[name]))
		}
	}
	return out, !slices.EqualFunc(there, out, Entry.equal)
}

// becomes reports whether the API accepts f in the place of e.
func (e Entry) becomes(f Entry) bool {
	e.Count = f.Count
	return e.equal(f)
}

func entryOf(name string, i Info) Entry {
	return Entry{
		Name:         name,
		NodeID:       i.NodeID,
		TopologyKeys: slices.Sorted(maps.Keys(i.Topology)),
		Count:        int32(max(0, min(i.VolumesMax, math.MaxInt32))),
	}
}

func (e Entry) equal(f Entry) bool {
	return e.Name == f.Name && e.NodeID == f.NodeID && e.Count == f.Count && slices.Equal(e.TopologyKeys, f.TopologyKeys)
}

// MergeIDs returns the node IDs that the Node's annotation should have, by driver, and whether they differ from those
// that it has.
func MergeIDs(there map[string]string, drivers map[string]Info, removed []string) (map[string]string, bool) {
	out := maps.Clone(there)
	if out == nil {
		out = map[string]string{}
	}
	for _, name := range removed {
		delete(out, name)
	}
	for name, info := range drivers {
		out[name] = info.NodeID
	}
	return out, !maps.Equal(there, out)
}

// MergeLabels returns the labels that the Node lacks.
func MergeLabels(there map[string]string, drivers map[string]Info) map[string]string {
	out := map[string]string{}
	for _, info := range drivers {
		for key, value := range info.Topology {
			if _, exists := there[key]; !exists {
				out[key] = value
			}
		}
	}
	return out
}

// Collision returns why a driver's topology cannot be published on a Node with these labels, or "".
func Collision(there map[string]string, i Info) string {
	for _, key := range slices.Sorted(maps.Keys(i.Topology)) {
		if has, exists := there[key]; exists && has != i.Topology[key] {
			return fmt.Sprintf("detected topology value collision: driver reported %q:%q but existing label is %q:%q: "+
				"if the node has moved and no volume needs the old value, remove the label", key, i.Topology[key], key, has)
		}
	}
	return ""
}
