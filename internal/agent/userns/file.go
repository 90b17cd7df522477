package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/userns"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

// fileName is the file in a pod's directory, as the kubelet names it.
const fileName = "userns"

// fileMax bounds the file, in bytes. Chosen: the kubelet's have some 130.
const fileMax = 16 << 10

// mappings is the content of the file, in the kubelet's format:
//
//	{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{...}]}
type mappings struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

type mapping struct {
	Host      uint32 `json:"hostId"`
	Container uint32 `json:"containerId"`
	Length    uint32 `json:"length"`
}

var errMappings = errors.New("want one mapping that begins at the pod's id 0, the same for users and groups")

func encode(r userns.Range) ([]byte, error) {
	one := []mapping{{Host: r.First, Length: r.Length}}
	return json.Marshal(mappings{UIDs: one, GIDs: one})
}

// decode reads what encode and the kubelet write: one run of ids from 0 on, the same for users and groups.
func decode(text []byte) (userns.Range, error) {
	var m mappings
	if err := json.Unmarshal(text, &m); err != nil {
		return userns.Range{}, err
	}
	if len(m.UIDs) != 1 || len(m.GIDs) != 1 || m.UIDs[0] != m.GIDs[0] || m.UIDs[0].Container != 0 {
		return userns.Range{}, errMappings
	}
	return userns.Range{First: m.UIDs[0].Host, Length: m.UIDs[0].Length}, nil
}

// read returns the range in a pod's file, or fs.ErrNotExist.
func read(path string) (userns.Range, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return userns.Range{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > fileMax {
		const want = "%s: %v of %d bytes: want a regular file of at most %d"
		return userns.Range{}, fmt.Errorf(want, path, info.Mode().Type(), info.Size(), fileMax)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return userns.Range{}, err
	}
	r, err := decode(text)
	if err != nil {
		return userns.Range{}, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// write makes a pod's file, so that it is whole and survives a crash of the machine from when write returns. After an
// error there may be a file or not. The pod's directory is removed as a whole, with what a crash leaves of a write.
func write(path string, r userns.Range) error {
	text, err := encode(r)
	if err != nil {
		return err
	}
	return durable.Write(path, text)
}

// parseSubordinate reads what getsubids(1) prints of a user who has one run of subordinate ids:
//
//	0: kubelet 65536 7208960
func parseSubordinate(text string) (first uint32, length uint64, err error) {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	fields := strings.Fields(lines[0])
	if len(lines) != 1 || len(fields) != 4 {
		return 0, 0, fmt.Errorf("%.200q: want one line of four words, as \"0: kubelet 65536 7208960\"", text)
	}
	from, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil {
		return 0, 0, fmt.Errorf("%.200q: first id: %w", text, err)
	}
	length, err = strconv.ParseUint(fields[3], 10, 32)
	if err != nil {
		return 0, 0, fmt.Errorf("%.200q: number of ids: %w", text, err)
	}
	return uint32(from), length, nil
}
