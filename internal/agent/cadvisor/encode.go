package cadvisor

import (
	"io"
	"math"
	"strconv"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
)

// flushBytes is how much is written at once.
const flushBytes = 64 << 10

// encoder writes samples of a scrape. After the first error it writes nothing more.
type encoder struct {
	*scrape
	w      io.Writer
	buffer []byte
	err    error
}

// containers writes all families of rows. A family of which no row has a sample is left out.
func (e *encoder) containers() {
	for i := range families {
		f := &families[i]
		var r *row
		begun := false
		take := func(extra string, v int64) {
			if v == cgroup.Absent {
				return
			}
			if !begun {
				begun = true
				e.head(f.name, f.help, f.kind)
			}
			e.sample(f, r, extra, v)
		}
		for j := range e.rows {
			r = &e.rows[j]
			f.each(e.scrape, r, take)
		}
	}
}

func (e *encoder) head(name, help, kind string) {
	e.buffer = append(e.buffer, "# HELP "...)
	e.buffer = append(e.buffer, name...)
	e.buffer = append(append(append(e.buffer, ' '), help...), "\n# TYPE "...)
	e.buffer = append(append(append(e.buffer, name...), ' '), kind...)
	e.buffer = append(e.buffer, '\n')
}

func (e *encoder) sample(f *family, r *row, extra string, v int64) {
	b := append(append(e.buffer, f.name...), '{')
	b = append(b, e.text[r.labels.from:r.labels.to]...)
	if extra != "" {
		b = append(append(b, ','), extra...)
	}
	e.buffer = append(appendValue(append(b, '}', ' '), v, f.unit), '\n')
	if len(e.buffer) >= flushBytes {
		e.flush()
	}
}

// single writes a family with one sample and no labels.
func (e *encoder) single(name, help string, v int64) {
	e.labelled(name, help, "", v)
}

// labelled writes a family with one sample.
func (e *encoder) labelled(name, help, labels string, v int64) {
	e.head(name, help, gauge)
	e.buffer = append(e.buffer, name...)
	if labels != "" {
		e.buffer = append(append(append(e.buffer, '{'), labels...), '}')
	}
	e.buffer = append(strconv.AppendInt(append(e.buffer, ' '), v, 10), '\n')
}

func (e *encoder) flush() {
	if e.err == nil {
		_, e.err = e.w.Write(e.buffer)
	}
	e.buffer = e.buffer[:0]
}

// unit says how a counter becomes a sample.
type unit uint8

const (
	plain        unit = iota
	nanoseconds       // shown in seconds
	milliseconds      // shown in seconds
	microseconds      // counted in nanoseconds, shown in microseconds
	orZero            // a limit; none is shown as 0
)

func appendValue(to []byte, v int64, u unit) []byte {
	switch u {
	case nanoseconds:
		return strconv.AppendFloat(to, float64(v)/float64(time.Second), 'g', -1, 64)
	case milliseconds:
		return strconv.AppendFloat(to, float64(v)/1000, 'g', -1, 64)
	case microseconds:
		return strconv.AppendInt(to, v/int64(time.Microsecond), 10)
	case orZero:
		if v == math.MaxInt64 {
			v = 0
		}
	}
	return strconv.AppendInt(to, v, 10)
}
