package eviction

import (
	"fmt"
	"slices"
)

// Causes that are exceeded limits of local storage, with upstream's names.
const (
	CauseEmptyDir         Cause = "emptydirfs.limit"
	CausePodStorage       Cause = "ephemeralpodfs.limit"
	CauseContainerStorage Cause = "ephemeralcontainerfs.limit"
)

// enforceLimits evicts pods that use more local storage than their limits allow. The message names only the first limit
// exceeded: of a volume, then of the pod, then of a container.
func (s *step) enforceLimits() {
	if !s.config.LocalStorage {
		return
	}
	for _, p := range s.facts.Pods {
		if p.Critical || p.Used == nil || !s.ends[p.ID].IsZero() {
			continue
		}
		cause, message := exceeded(p, s.disks)
		if cause == "" {
			continue
		}
		s.limited[p.ID] = true
		s.add(Victim{ID: p.ID, Namespace: p.Namespace, Name: p.Name, Grace: graceLeast, Cause: cause, Message: message})
	}
}

// Limited reports whether the pod has a limit of local storage.
func (p Pod) Limited() bool {
	return p.StorageLimit.IsSet() ||
		slices.ContainsFunc(p.Volumes, func(v Volume) bool { return v.SizeLimit.Value > 0 }) ||
		slices.ContainsFunc(p.Containers, func(c Container) bool { return c.StorageLimit.Value > 0 })
}

// exceeded returns the limit of local storage that p exceeds, and the message about it.
func exceeded(p Pod, disks Disks) (Cause, string) {
	for _, v := range p.Volumes {
		if v.Used != nil && v.SizeLimit.Value > 0 && v.Used.Bytes > v.SizeLimit.Value {
			return CauseEmptyDir, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, v.SizeLimit)
		}
	}
	if p.StorageLimit.IsSet() && int64(p.Used.Storage) > p.StorageLimit.Value {
		return CausePodStorage, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ",
			p.StorageLimit)
	}
	for _, c := range p.Containers {
		var used int64
		if c.Logs != nil {
			used += c.Logs.Bytes
		}
		if c.Rootfs != nil && disks == OneDisk {
			used += c.Rootfs.Bytes
		}
		if c.StorageLimit.Value > 0 && used > c.StorageLimit.Value {
			return CauseContainerStorage, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name,
				c.StorageLimit)
		}
	}
	return "", ""
}
