package main

import "testing"

func TestParse(t *testing.T) {
	if got, err := parseParent("12 (a ) b) S 7 12 12 0 -1\n"); err != nil || got != 7 {
		t.Errorf("parent %d, %v", got, err)
	}
	if _, err := parseParent("12 (a)"); err == nil {
		t.Error("a short line is accepted")
	}
	text := "55d0-7ffc ---p 00000000 00:00 0    [rollup]\nRss:               20480 kB\nPss:               10172 kB\n"
	for key, want := range map[string]float64{"Rss": 20480, "Pss": 10172} {
		if got, err := parseRollup("smaps_rollup", text, key); err != nil || got != want {
			t.Errorf("%s is %v, %v", key, got, err)
		}
	}
	if _, err := parseRollup("smaps_rollup", text, "Swap"); err == nil {
		t.Error("a missing line is accepted")
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"--rounds", "0"}, {"--nodes", "1"}, {"--rest", "0s"}, {"--settle", "-1s"}} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
	if _, err := parseFlags(nil); err != nil {
		t.Error(err)
	}
}
