package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestFramesComeBack(t *testing.T) {
	long := strings.Repeat("long ", frameMax)
	var stream, out, complaint bytes.Buffer
	exit, err := json.Marshal(Exit{Code: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		kind Kind
		text string
	}{{Stdout, "a"}, {Stderr, "b"}, {Stdout, long}, {Stdout, ""}, {Ended, string(exit)}} {
		if err := WriteFrame(&stream, f.kind, []byte(f.text)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadFrames(&stream, &out, &complaint)
	if err != nil || got != (Exit{Code: 3}) || out.String() != "a"+long || complaint.String() != "b" {
		t.Errorf("%+v, %v, %d bytes of output, %q", got, err, out.Len(), complaint.String())
	}
}

func TestBrokenFramesSayWhy(t *testing.T) {
	for stream, want := range map[string]string{
		"":                              "unexpected EOF",
		"\x01\x00\x00\x00\x02a":         "unexpected EOF",
		"\x01\xff\x00\x00\x00":          "want 32768 at most",
		"\x09\x00\x00\x00\x00":          "kind 9",
		"\x03\x00\x00\x00\x01{":         "read exit",
		"\x01\x00\x00\x00\x01a\x02\x00": "unexpected EOF",
	} {
		if _, err := ReadFrames(strings.NewReader(stream), nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", stream, err, want)
		}
	}
}

func FuzzReadFrames(f *testing.F) {
	cost.Attack(f, []byte("\x01\x00\x00\x00\x01a\x03\x00\x00\x00\x0a{\"Code\":1}"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		defer cost.Spend(t, len(stream))()
		var out, complaint bytes.Buffer
		if _, err := ReadFrames(bytes.NewReader(stream), &out, &complaint); out.Len()+complaint.Len() > len(stream) {
			t.Errorf("%d bytes made %d, %v", len(stream), out.Len()+complaint.Len(), err)
		}
	})
}
