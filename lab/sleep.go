package lab

import (
	"context"
	"fmt"
	"time"
)

// sleepWithin bounds the time that a guest takes to fall asleep or wake up (chosen: a second or two on two idle cores;
// its kernel allows its programs 20 s to freeze, kernel/power/process.c).
const sleepWithin = time.Minute

// Suspend puts the guest to sleep until Wake: its memory is preserved, its CPUs and devices are switched off (ACPI's
// S3). Meanwhile its network card does not answer, and no command may be run. When it wakes, the kernel sets its wall
// clock by the board's clock; its monotonic clock does not count the sleep.
func (g *Guest) Suspend(t T) {
	t.Helper()
	// A background process does it: no data of a command may be in the channel when the guest falls asleep.
	const script = `echo deep > /sys/power/mem_sleep &&
(for try in 1 2 3 4 5; do sleep 1; echo mem > /sys/power/state && break; done) < /dev/null > /run/suspend.log 2>&1 &`
	g.Run(t, "sh", "-c", script)
	g.awaitStatus(t, "suspended")
}

// Wake wakes a sleeping guest. now is the time of the board's clock then.
func (g *Guest) Wake(t T, now time.Time) {
	t.Helper()
	g.SetBoardClock(t, now)
	g.sendQMP(t, "system_wakeup", nil)
	g.awaitStatus(t, "running")
	ctx, cancel := context.WithTimeout(t.Context(), sleepWithin)
	defer cancel()
	if _, err := g.Output(ctx, "true"); err != nil {
		t.Fatalf("wake %s: %v", g.Name, err)
	}
}

// Registers of the clock on a PC's board, and their ports (MC146818; QEMU's hw/rtc/mc146818rtc.c).
const (
	clockIndex, clockValue    = 0x70, 0x71
	clockControl              = 0x0b
	clockSet, clock24h        = 0x80, 0x02 // the clock is stopped to be set; 24-hour format
	clockSeconds, clockMinute = 0x00, 0x02
	clockHour, clockDay       = 0x04, 0x07
	clockMonth, clockYear     = 0x08, 0x09
	clockCentury              = 0x32
)

// SetBoardClock sets the clock on the guest's board, which the guest reads when it boots and when it wakes. A running
// guest does not notice.
func (g *Guest) SetBoardClock(t T, now time.Time) {
	t.Helper()
	if g.process == nil {
		t.Fatalf("set the board's clock of %s: it is switched off", g.Name)
	}
	now = now.UTC()
	set := func(register, value int) {
		t.Helper()
		for _, out := range [][2]int{{clockIndex, register}, {clockValue, value}} {
			if err := g.process.monitor.human(fmt.Sprintf("o /b %#x %#x", out[0], out[1])); err != nil {
				t.Fatalf("set the board's clock of %s: %v", g.Name, err)
			}
		}
	}
	decimal := func(n int) int { return n/10<<4 | n%10 }
	set(clockControl, clockSet|clock24h)
	set(clockSeconds, decimal(now.Second()))
	set(clockMinute, decimal(now.Minute()))
	set(clockHour, decimal(now.Hour()))
	set(clockDay, decimal(now.Day()))
	set(clockMonth, decimal(int(now.Month())))
	set(clockYear, decimal(now.Year()%100))
	set(clockCentury, decimal(now.Year()/100))
	set(clockControl, clock24h)
}

// awaitStatus waits until QEMU reports the given status (qapi/run-state.json, RunState).
func (g *Guest) awaitStatus(t T, want string) {
	t.Helper()
	if g.process == nil {
		t.Fatalf("wait for %s to be %s: it is switched off", g.Name, want)
	}
	for began := time.Now(); ; {
		var is struct{ Status string }
		if err := g.process.monitor.do("query-status", nil, &is); err != nil {
			t.Fatalf("%v", err)
		}
		if is.Status == want {
			return
		}
		if time.Since(began) > sleepWithin {
			t.Fatalf("wait for %s to be %s: it is %s after %v", g.Name, want, is.Status, sleepWithin)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("wait for %s to be %s: %v", g.Name, want, t.Context().Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
