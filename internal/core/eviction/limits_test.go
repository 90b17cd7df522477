package eviction

import "testing"

// TestLimited: a pod is limited exactly if it could exceed a limit of local storage.
func TestLimited(t *testing.T) {
	all := &Disk{Bytes: 1 << 60}
	none, some := Quantity{}, Quantity{1 << 20, "1Mi"}
	for name, limits := range map[string][3]Quantity{
		"none":                         {none, none, none},
		"a volume's":                   {some, none, none},
		"the pod's":                    {none, some, none},
		"a container's":                {none, none, some},
		"a volume without one, stated": {{0, "0"}, none, none},
	} {
		p := Pod{
			Used: &Usage{Storage: 1 << 60}, StorageLimit: limits[1],
			Volumes:    []Volume{{Name: "v", Used: all, SizeLimit: limits[0]}},
			Containers: []Container{{Name: "c", Logs: all, StorageLimit: limits[2]}},
		}
		cause, _ := exceeded(p, OneDisk)
		if p.Limited() != (cause != "") || p.Limited() != (limits[0].Value+limits[1].Value+limits[2].Value > 0) {
			t.Errorf("%s: limited %v, exceeds %q", name, p.Limited(), cause)
		}
	}
}
