package eviction

import (
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt in virtual time, on a node with 8 GiB of memory, 100 GiB of disk, 1M inodes and
// 32768 process ids. Commands:
//
//	config           lines: hard|soft SIGNAL VALUE [grace=D] [reclaim=VALUE]; transition D; grace-max D; memory available;
//	                 reclaim-memory; images-low N; local-storage. Begins a new node.
//	node KEY=VALUE   memory, system, cache, limit (of all pods), swap (that pods may use), disk, used, inodes, files,
//	                 images (imagefs), dead, unused, pids, disks=one|image|split, stale=D (readings are so old), hang,
//	                 counting=D (how long a count of the pods' disk usage takes)
//	pod NAME ...     adds or changes pods, one per line: priority, mem, grow (per second), req, cache, swap, pids, grace,
//	                 rootfs, logs, volume, files (inodes of the volume), seen and seen-files (bytes and inodes of the
//	                 volume, as known until the next count), limit (of the pod's storage), size (of the volume),
//	                 frees=D (how long freeing takes after SIGKILL), critical, stuck, unknown, hostpath,
//	                 end=D (the pod is ended with that grace period)
//	run D            time passes; prints what is new
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "config":
				w = newWorld(t)
				for _, line := range strings.Split(d.Input, "\n") {
					w.configure(strings.Fields(line))
				}
				w.decide = New(w.config)
				return ""
			case "node":
				for _, a := range d.CmdArgs {
					w.set(a.Key, strings.Join(a.Vals, ""))
				}
				return ""
			case "pod":
				for _, line := range strings.Split(d.Input, "\n") {
					w.pod(strings.Fields(line))
				}
				return ""
			case "run":
				w.run(duration(t, d.CmdArgs[0].Key))
				return w.told()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func (w *world) configure(words []string) {
	switch words[0] {
	case "hard", "soft":
		t := Threshold{Signal: allocatable.Signal(words[1])}
		t.Value, t.Text = w.value(words[2])
		for _, option := range words[3:] {
			switch key, value, _ := strings.Cut(option, "="); key {
			case "grace":
				t.Grace = duration(w.t, value)
			case "reclaim":
				t.Reclaim, _ = w.value(value)
			}
		}
		w.config.Thresholds = append(w.config.Thresholds, t)
	case "transition":
		w.config.Transition = duration(w.t, words[1])
	case "grace-max":
		w.config.SoftGraceMax = duration(w.t, words[1])
	case "memory":
		w.config.Memory = MemorySignal(words[1])
	case "reclaim-memory":
		w.config.ReclaimMemory = true
	case "images-low":
		w.config.ImagesLow = amount(w.t, words[1])
	case "local-storage":
		w.config.LocalStorage = true
	default:
		w.t.Fatalf("unknown setting %s", words[0])
	}
}

func (w *world) value(text string) (allocatable.Threshold, string) {
	if strings.HasSuffix(text, "%") {
		v, err := allocatable.ParseShare(text)
		if err != nil {
			w.t.Fatal(err)
		}
		return v, ""
	}
	return allocatable.Threshold{Amount: amount(w.t, text)}, text
}

func (w *world) set(key, value string) {
	bytes := map[string]*unit.Bytes{
		"memory": &w.memory,
		"system": &w.system,
		"cache":  &w.cache,
		"limit":  &w.limit,
		"swap":   &w.swap,
		"dead":   &w.dead,
		"unused": &w.unused,
	}
	counts := map[string]*int64{
		"disk":   &w.disk.Bytes,
		"used":   &w.other.Bytes,
		"inodes": &w.disk.Inodes,
		"files":  &w.other.Inodes,
		"images": &w.images.Bytes,
		"pids":   &w.pids,
	}
	switch {
	case bytes[key] != nil:
		*bytes[key] = unit.Bytes(amount(w.t, value))
	case counts[key] != nil:
		*counts[key] = amount(w.t, value)
	case key == "disks":
		w.disks = map[string]Disks{"one": OneDisk, "image": ImageDisk, "split": SplitDisk}[value]
	case key == "stale":
		w.stale = duration(w.t, value)
	case key == "counting":
		w.counting = duration(w.t, value)
	case key == "hang":
		w.hang = true
	default:
		w.t.Fatalf("unknown key %s", key)
	}
}

func (w *world) pod(words []string) {
	b := &body{
		Pod:   Pod{ID: words[0], Namespace: "default", Name: words[0], Used: &Usage{PIDs: 1}},
		frees: 200 * time.Millisecond,
	}
	for _, old := range w.pods {
		if old.Name == words[0] {
			b = old
		}
	}
	if b.Containers == nil {
		b.Containers = []Container{{Name: "main", Rootfs: &Disk{}, Logs: &Disk{}}}
		b.Volumes = []Volume{{Name: "data", Used: &Disk{}, Local: true, Freed: true}}
		w.pods = append(w.pods, b)
	}
	for _, option := range words[1:] {
		key, value, _ := strings.Cut(option, "=")
		if !w.podOption(b, key, value) {
			w.t.Fatalf("unknown option %s", option)
		}
	}
}

func (w *world) podOption(b *body, key, value string) bool {
	c, v := &b.Containers[0], &b.Volumes[0]
	switch bytes := map[string]*unit.Bytes{"mem": &b.memory, "grow": &b.grows, "cache": &b.Used.Cache,
		"swap": &b.Used.Swap}; {
	case bytes[key] != nil:
		*bytes[key] = unit.Bytes(amount(w.t, value))
		return true
	}
	switch counts := map[string]*int64{"pids": &b.Used.PIDs, "rootfs": &c.Rootfs.Bytes, "logs": &c.Logs.Bytes,
		"volume": &v.Used.Bytes, "files": &v.Used.Inodes}; {
	case counts[key] != nil:
		*counts[key] = amount(w.t, value)
		b.Used.Storage = unit.Bytes(c.Rootfs.Bytes + c.Logs.Bytes + v.Used.Bytes)
		return true
	}
	switch key {
	case "seen", "seen-files":
		if b.seen == nil {
			b.seen = &Disk{}
		}
		if key == "seen" {
			b.seen.Bytes = amount(w.t, value)
		} else {
			b.seen.Inodes = amount(w.t, value)
		}
	case "priority":
		b.Priority = int32(amount(w.t, value))
	case "req":
		c.MemoryRequest = Quantity{amount(w.t, value), value}
		b.MemoryRequest = unit.Bytes(c.MemoryRequest.Value)
	case "grace":
		b.Grace = unit.Of(duration(w.t, value))
	case "frees":
		b.frees = duration(w.t, value)
	case "end":
		b.KillAt = w.now.Add(duration(w.t, value))
	case "limit":
		b.StorageLimit = Quantity{amount(w.t, value), value}
	case "size":
		v.SizeLimit = Quantity{amount(w.t, value), value}
	case "container-limit":
		c.StorageLimit = Quantity{amount(w.t, value), value}
	case "critical":
		b.Critical = true
	case "stuck":
		b.stuck = true
	case "unknown":
		b.unknown = true
	case "hostpath":
		v.Freed = false
	default:
		return false
	}
	return true
}
