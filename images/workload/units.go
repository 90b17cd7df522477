package main

import (
	"fmt"
	"strconv"
	"strings"
)

// size is a flag with a number of bytes, in the format of Kubernetes' quantities (64Mi, 1G) or plain.
type size int64

var suffixes = []struct {
	text  string
	bytes int64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12},
}

func (s *size) String() string { return strconv.FormatInt(int64(*s), 10) }

func (s *size) Set(text string) error {
	digits, factor := text, int64(1)
	for _, suffix := range suffixes {
		if strings.HasSuffix(text, suffix.text) {
			digits, factor = strings.TrimSuffix(text, suffix.text), suffix.bytes
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > (1<<62)/factor {
		return fmt.Errorf("size %q: want bytes such as 4096, 64Mi or 1G", text)
	}
	*s = size(n * factor)
	return nil
}

// rate is a flag with bytes per second: 5Mi/s, or without the /s. The verb decides whether zero means "unlimited" or
// "never".
type rate struct{ size }

func (r *rate) Set(text string) error { return r.size.Set(strings.TrimSuffix(text, "/s")) }

// ports is a flag that lists port numbers: 80,443.
type ports []int

func (p *ports) String() string { return fmt.Sprint([]int(*p)) }

func (p *ports) Set(text string) error {
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 0 || n > 65535 {
			return fmt.Errorf("port %q: want a number from 0 to 65535", field)
		}
		*p = append(*p, n)
	}
	return nil
}
