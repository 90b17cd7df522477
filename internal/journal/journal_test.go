package journal

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func open(t *testing.T, dir string, bytesMax int64) *Journal {
	t.Helper()
	j, err := Open(dir, bytesMax)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func record(name string, size int) Record {
	detail, _ := json.Marshal(strings.Repeat("x", size))
	return Record{
		Time: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Kind: Eviction, Text: "evicted " + name,
		Pods: []Pod{{Namespace: "default", Name: name, UID: "u-" + name}}, Detail: detail,
	}
}

func names(records []Record) (list []string) {
	for _, r := range records {
		list = append(list, r.Pods[0].Name)
	}
	return list
}

func TestRecordsAreFoundAgainAfterACrash(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, 0)
	for _, name := range []string{"a", "b", "a"} {
		if _, err := j.Append(record(name, 10)); err != nil {
			t.Fatal(err)
		}
	}
	// No Close: the process is killed here, in the middle of the next line.
	f, err := os.OpenFile(filepath.Join(dir, newer), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`0badc0de {"number":4,"kind":"evic`); err != nil {
		t.Fatal(err)
	}
	f.Close()

	j = open(t, dir, 0)
	number, err := j.AppendWithin(time.Minute, record("c", 10))
	if err != nil || number != 4 {
		t.Fatalf("number %d, %v: want the one after the last that was written whole", number, err)
	}
	all, err := j.Find(Query{})
	if got := strings.Join(names(all.Records), " "); err != nil || got != "a b a c" {
		t.Errorf("found %q, %v", got, err)
	}
	found, err := j.Find(Query{Namespace: "default", Name: "a"})
	one := found.Records
	if err != nil || len(one) != 2 || one[1].Number != 3 || one[1].Text != "evicted a" ||
		string(one[1].Detail) != `"xxxxxxxxxx"` || found.First != 1 || found.Last != 4 || found.Damaged != 1 {
		t.Errorf("found %+v, %v", found, err)
	}
	for _, q := range []Query{{Namespace: "kube-system", Name: "a"}, {Name: "a", UID: "u-b"}} {
		if none, err := j.Find(q); err != nil || len(none.Records) != 0 {
			t.Errorf("%+v: found %+v, %v", q, none, err)
		}
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

func TestSizeIsBounded(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, 0)
	for range 60 {
		if _, err := j.Append(record("a", 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := j.Append(record("big", lineMax)); err == nil {
		t.Error("a record without bound was taken")
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	var size int64
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if len(entries) != 2 || size > 2*lineMax || size < lineMax {
		t.Errorf("%d files, %d bytes, want 2 and at most %d, more than half of it in use", len(entries), size, 2*lineMax)
	}
	j = open(t, dir, 0)
	defer j.Close()
	found, err := j.Find(Query{})
	kept := found.Records
	if err != nil || len(kept) < 10 || kept[len(kept)-1].Number != 60 || found.First != kept[0].Number || found.First < 2 {
		t.Errorf("kept %d from %d on, %v", len(kept), found.First, err)
	}
}

func FuzzDecode(f *testing.F) {
	good, err := encode(nil, record("a", 3))
	if err != nil {
		f.Fatal(err)
	}
	cost.Attack(f, bytes.TrimSuffix(good, []byte{'\n'}))
	cost.Attack(f, []byte(`0badc0de {"number":4,"kind":"evic`))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer cost.Spend(t, len(text))()
		r, err := decode(text)
		if err != nil {
			return
		}
		again, err := encode(nil, r)
		if err != nil {
			return // too long
		}
		if _, err := decode(bytes.TrimSuffix(again, []byte{'\n'})); err != nil {
			t.Errorf("%q: what was read is not written back: %v", text, err)
		}
	})
}
