package nodecert

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/scenario"
)

// begin is an arbitrary moment.
const begin = unit.Wall(1_800_000_000 * time.Second)

var causes = map[string]Cause{
	"unreachable": Unreachable, "refused": Refused, "no-answer": NoAnswer,
	"denied": Denied, "signer-failed": SignerFailed, "unusable": Unusable,
}

// TestScenarios plays testdata/*.txt: the life of one certificate, all times since its begin. Lines of the input of
// "life", or of "life renews" for a certificate that is renewed:
//
//	at TIME                    moves the clock, also back
//	use FROM TO [spread=N]     a certificate that is valid from and to these moments is in use
//	forget                     the certificate is gone
//	fail CAUSE [spread=N]      a request gave none
//	misfits, fits              the certificate does not, or does, say what the node wants
//
// Each line but "at" prints what the certificate is good for, with which credentials is asked, and when.
func TestScenarios(t *testing.T) {
	scenario.Play(t, "testdata", "life", func(t *testing.T, d *datadriven.TestData) string {
		l := &Life{Renews: d.HasArg("renews")}
		now, fits := begin, true
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			words := strings.Fields(line)
			moment := func(i int) unit.Wall { return begin + unit.Wall(scenario.Duration(t, d, words[i])) }
			var spread float64
			if text, ok := strings.CutPrefix(words[len(words)-1], "spread="); ok {
				if _, err := fmt.Sscan(text, &spread); err != nil {
					d.Fatalf(t, "%s: %v", line, err)
				}
			}
			switch words[0] {
			case "at":
				now = moment(1)
				continue
			case "use":
				l.Use(Validity{Begins: moment(1), Expires: moment(2)}, spread)
			case "forget":
				l.Forget()
			case "fail":
				cause, ok := causes[words[1]]
				if !ok {
					d.Fatalf(t, "unknown cause %q", words[1])
				}
				l.Failed(now, cause, spread)
			case "misfits", "fits":
				fits = words[0] == "fits"
			default:
				d.Fatalf(t, "unknown line %q", line)
			}
			due, asks := l.Due(now, fits), "bootstrap"
			if l.Signs(now) {
				asks = "own"
			}
			fmt.Fprintf(&out, "%v %s: %s, asks with %s at %v, failed %d\n",
				now.Sub(begin), strings.TrimSpace(line), l.State(now), asks, due.Sub(begin).Round(time.Millisecond), l.Fails())
		}
		return out.String()
	})
}

// TestNewKey: a request about which somebody decided is over, and its key with it.
func TestNewKey(t *testing.T) {
	for name, cause := range causes {
		decided := name == "denied" || name == "signer-failed" || name == "unusable"
		if cause.NewKey() != decided {
			t.Errorf("%s: another key: %v, want %v", name, cause.NewKey(), decided)
		}
	}
}

// TestSpread: nodes that got their certificates at the same moment renew them between 70 and 90 per cent of its
// lifetime, and not all at once.
func TestSpread(t *testing.T) {
	const life = 1000 * time.Hour
	for i, spread := range []float64{0, 0.5, 0.999} {
		l := Life{Renews: true}
		l.Use(Validity{Begins: begin, Expires: begin + unit.Wall(life)}, spread)
		at := l.Due(begin, true).Sub(begin).Hours()
		if low := 700 + 200*spread; at < low-0.001 || at > low+0.001 {
			t.Errorf("case %d: renewed after %v of 1000 hours, want %v", i, at, low)
		}
	}
}
