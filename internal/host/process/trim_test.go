package process

import (
	"strings"
	"testing"
)

func TestCodeOfTakesOnlyOurReadOnlyMappings(t *testing.T) {
	const maps = `00400000-0105a000 r-xp 00000000 fe:00 131 /bin/plimsoll
0105a000-02000000 r--p 00c5a000 fe:00 131 /bin/plimsoll
02000000-02100000 rw-p 01c00000 fe:00 131 /bin/plimsoll
03000000-03001000 r--s 00000000 fe:00 131 /bin/plimsoll
c000000000-c000400000 rw-p 00000000 00:00 0
7f0000000000-7f0000001000 r-xp 00000000 fe:00 99 /lib/libc.so.6
`
	got, err := codeOf(strings.NewReader(maps), "/bin/plimsoll")
	if err != nil {
		t.Fatal(err)
	}
	want := []span{{0x400000, 0x105a000}, {0x105a000, 0x2000000}}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %x, want %x", got, want)
	}
	if _, err := codeOf(strings.NewReader("xyz r-xp 0 fe:00 131 /bin/plimsoll\n"), "/bin/plimsoll"); err == nil {
		t.Error("a range that is none was accepted")
	}
}

// The program must continue as if nothing had happened, including constants.
func TestTrimIsHarmless(t *testing.T) {
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Repeat("ab", 3); got != "ababab" {
		t.Errorf("got %q after trimming", got)
	}
}
