//go:build e2e

package hostile

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"testing"
)

// The long form's measure (chosen): enough copies that slots of any kind that one attack could hold are held, and rounds enough that
// what is lost a little each time is missed.
var (
	rounds = flag.Int("rounds", 10, "how often each attack comes in TestOneByOne")
	copies = flag.Int("copies", 3, "in how many times as many pods as in the short form")
	only   = flag.String("attacks", "", "regular expression for the names of the attacks of the short form; empty: all but those that come alone")
	not    = flag.String("without", "^$", "regular expression for the names of those that do not come")
)

// The short form: the attacks of one kind come all at once.

func TestOnDisk(t *testing.T)      { allAtOnce(t, onDisk) }
func TestInProcesses(t *testing.T) { allAtOnce(t, inProcesses, inLogs, inProbes) }
func TestInObjects(t *testing.T)   { allAtOnce(t, inHooks, inObjects) }

func allAtOnce(t *testing.T, lists ...[]attack) {
	come, stay := regexp.MustCompile(*only), regexp.MustCompile(*not)
	var chosen []attack
	for _, a := range slices.Concat(lists...) {
		if come.MatchString(a.name) && !stay.MatchString(a.name) && (!a.alone || *only != "") {
			chosen = append(chosen, a)
		}
	}
	if len(chosen) == 0 {
		t.Skip("none of these attacks was asked for")
	}
	begin(t).suffer(1, chosen...)
}

// TestOneByOne is the long form.
func TestOneByOne(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("takes an hour: set PLIMSOLL_E2E_LONG")
	}
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			s := begin(t)
			for range *rounds {
				s.suffer(*copies, a)
			}
		})
	}
}
